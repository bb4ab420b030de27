"""Problems: how an error is told over HTTP (RFC 9457): which rule it was, what happened, and the way out.

Every error of ours is mapped here, once. What nobody foresaw is logged and told without its text.
"""

import json
import traceback
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, Final

from fastapi import Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import RedirectResponse, Response

from redrive import errors
from redrive.logs import log
from redrive.operate import auth, cursor, edit, views
from redrive.operate.web import pages

MEDIA_TYPE: Final = "application/problem+json"
_MOST_FAULTS: Final = 20
_LONGEST_DETAIL: Final = 2_000


@dataclass(frozen=True, slots=True)
class Rule:
    """Which rule an error stands for."""

    name: str
    status: int
    title: str
    next: str
    retry_after: int | None = None


NOT_SIGNED_IN: Final = Rule("not-signed-in", 401, "You are not signed in", "Send `Authorization: Bearer rdv_…`.")
FORBIDDEN: Final = Rule("forbidden", 403, "Your role does not allow this", "Ask somebody whose role does.")
FOREIGN: Final = Rule(
    "foreign-origin", 403, "This came from another page",
    "Send it from a page of this server, or with `Authorization: Bearer …` instead of a cookie.",
)  # fmt: skip
NOT_FOUND: Final = Rule("not-found", 404, "There is nothing here", "List what there is, and use an id from there.")
AMBIGUOUS: Final = Rule("ambiguous", 409, "Several are meant", "Give more of the id.")
REFUSED: Final = Rule("refused", 409, "This cannot be done now", "Look at it again: it may have changed meanwhile.")
CHANGED: Final = Rule("changed", 412, "It has changed meanwhile", "Read it again, and edit it anew.")
NEEDS_MATCH: Final = Rule("needs-match", 428, "Say which state you have seen", "Send its ETag as `If-Match`.")
INVALID: Final = Rule("invalid", 422, "This cannot be understood", "Correct what `detail` and `errors` say.")
SELECTION: Final = Rule("selection", 422, "The selection cannot be understood", "Correct it where `position` points.")
KEY_REUSED: Final = Rule(
    "idempotency-key-reused", 422, "This key was used for another call", "Use a new key for every new call.",
)  # fmt: skip
UNDER_WAY: Final = Rule("under-way", 409, "A call with this key is under way", "Ask again in a second.", 1)
BAD_CURSOR: Final = Rule("bad-cursor", 400, "This cursor is none of ours", "Begin again without a cursor.")
BAD_REQUEST: Final = Rule("bad-request", 400, "This is not a request we can read", "Correct it.")
TOO_LARGE: Final = Rule("too-large", 413, "The body is too large", "Send less, or in several requests.")
TOO_SLOW: Final = Rule("too-slow", 408, "The body came too slowly", "Send it again.")
NOT_JSON: Final = Rule("unsupported-media-type", 415, "This media type is not taken here", "Send `application/json`.")
NO_METHOD: Final = Rule("method-not-allowed", 405, "This method is not for this place", "`Allow` lists those that are.")
STORE_DOWN: Final = Rule(
    "store-unavailable", 503, "The database does not answer", "Try again: nothing is lost meanwhile.", 2
)
NOT_READY: Final = Rule("not-ready", 503, "The database is not ready", "Do what `detail` says, then try again.", 30)
UNEXPECTED: Final = Rule(
    "unexpected", 500, "Something went wrong here", "The log of the server says what; please report it."
)

# The first that fits decides, so the special ones stand before the general ones.
RULES: Final[tuple[tuple[type[BaseException], Rule], ...]] = (
    (auth.NotSignedIn, NOT_SIGNED_IN),
    (auth.Forbidden, FORBIDDEN),
    (auth.ForeignOrigin, FOREIGN),
    (cursor.BadCursor, BAD_CURSOR),
    (errors.NotFound, NOT_FOUND),
    (views.Ambiguous, AMBIGUOUS),
    (errors.StoreUnavailable, STORE_DOWN),
    (errors.SchemaMissing, NOT_READY),
    (errors.SchemaTooNew, NOT_READY),
    (errors.MissingDriver, NOT_READY),
    (errors.SelectionError, SELECTION),
    (errors.ConfigurationError, INVALID),
    (errors.PayloadRefused, INVALID),
    (errors.PayloadInvalid, INVALID),
    (edit.BadEdit, INVALID),
    (errors.Refused, REFUSED),
    (errors.LeaseLost, REFUSED),
    (errors.RedriveError, REFUSED),
)
_BY_STATUS: Final[Mapping[int, Rule]] = {
    400: BAD_REQUEST, 404: NOT_FOUND, 405: NO_METHOD, 413: TOO_LARGE, 415: NOT_JSON, 422: INVALID,
}  # fmt: skip


class Problem(errors.RedriveError):
    """What a route itself objects to."""

    def __init__(self, rule: Rule, detail: str, **more: Any) -> None:
        super().__init__(detail)
        self.rule = rule
        self.more = more


@dataclass(frozen=True, slots=True)
class Told:
    """An error as it is told."""

    rule: Rule
    detail: str
    more: Mapping[str, Any] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Return what problem+json says."""
        return {
            "type": f"urn:redrive:problem:{self.rule.name}",
            "title": self.rule.title,
            "status": self.rule.status,
            "detail": self.detail[:_LONGEST_DETAIL],
            "next": self.rule.next,
            **self.more,
        }


def told(error: BaseException) -> Told:
    """Find the words for an error."""
    if isinstance(error, Problem):
        return Told(error.rule, str(error), error.more)
    if isinstance(error, RequestValidationError):
        return Told(INVALID, "the request does not fit", {"errors": list(_faults(error.errors()))})
    if isinstance(error, HTTPException):
        rule = _BY_STATUS.get(error.status_code)
        if rule is None:
            title = HTTPStatus(error.status_code).phrase
            rule = Rule(title.lower().replace(" ", "-"), error.status_code, title, "Correct the request.")
        return Told(rule, str(error.detail), headers=error.headers or {})
    rule = next((rule for kind, rule in RULES if isinstance(error, kind)), UNEXPECTED)
    if rule is UNEXPECTED:
        return Told(UNEXPECTED, f"unexpected {type(error).__name__}")
    return Told(rule, str(error), _more(error))


def _more(error: BaseException) -> dict[str, Any]:
    if isinstance(error, errors.SelectionError):
        return {"reason": error.reason, "position": error.position, "length": error.length}
    if isinstance(error, errors.PayloadRefused):
        return {"errors": [{"pointer": "/" + error.field.replace(".", "/"), "detail": str(error)}]}
    if isinstance(error, views.Ambiguous):
        return {
            "candidates": [
                str(getattr(each, "id", None) or getattr(each, "fingerprint", "")) for each in error.candidates
            ]
        }
    return {}


def _faults(found: Iterable[Mapping[str, Any]]) -> Iterable[dict[str, str]]:
    """Point at what does not fit; never repeat the value, which may be secret."""
    for fault, _ in zip(found, range(_MOST_FAULTS), strict=False):
        where, *place = fault.get("loc") or ("body",)
        pointer = "/".join(str(part).replace("~", "~0").replace("/", "~1") for part in place)
        yield {"in": str(where), "pointer": f"/{pointer}", "detail": str(fault.get("msg", ""))[:300]}


async def respond(request: Request, error: Exception) -> Response:
    """Answer with an error: a page for a browser that looks at pages, problem+json for all others."""
    said = told(error)
    if said.rule is UNEXPECTED:
        where = "".join(traceback.format_exception(error))[-4_000:]
        log.error("request failed", method=request.method, path=request.scope["path"], error=where)
    headers = dict(said.headers)
    if said.rule.retry_after is not None:
        headers["Retry-After"] = str(said.rule.retry_after)
    if pages.wants_page(request):
        if said.rule is NOT_SIGNED_IN:
            return RedirectResponse(pages.login_address(request), 303)
        return pages.render(request, "trouble.html", said.rule.status, headers, problem=said.to_json())
    if said.rule is NOT_SIGNED_IN:
        headers["WWW-Authenticate"] = 'Bearer realm="redrive"'
    return Response(json.dumps(said.to_json()), said.rule.status, headers, MEDIA_TYPE)
