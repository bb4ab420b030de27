"""HTTP: the desk for others. Errors are problem+json (RFC 9457)."""

import hmac
import ipaddress
import json
from collections.abc import Awaitable, Callable
from functools import wraps
from typing import Any, Final, TypeVar

from pydantic import BaseModel, TypeAdapter, ValidationError
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from redrive import StoreUnavailable
from redrive.apps.adjudication.desk import Answer, Desk
from redrive.apps.adjudication.words import (
    BadDecision,
    Conflict,
    Decision,
    Progress,
    ReceiptId,
    Submission,
    UnknownReceipt,
)

_BODY_BYTES: Final = 16_384
_PAGE: Final = 50
_RECEIPT_ID: Final[TypeAdapter[str]] = TypeAdapter(ReceiptId)
Route_ = Callable[[Request], Awaitable[Response]]
M = TypeVar("M", bound=BaseModel)


def site(desk: Desk, token: str | None) -> Starlette:
    """Make the ASGI app. Without a token only this machine is answered."""

    async def submit(request: Request) -> Response:
        return _answered(await desk.submit(await _read(request, Submission)), 201)

    async def adjudicate(request: Request) -> Response:
        receipt_id, decision = _receipt_id(request), await _read(request, Decision)
        try:
            return _answered(await desk.adjudicate(receipt_id, decision), 202)
        except UnknownReceipt as error:
            event_id = await desk.keep_unknown(receipt_id, decision)
            if event_id is None:
                return problem(
                    404, "unknown-receipt", f"{error}; the decision was not kept: too many such are", kept=False
                )
            said = f"{error}; the decision is kept as event {event_id}: submit the receipt, then replay that"
            return problem(404, "unknown-receipt", said, kept=True, event_id=str(event_id))

    async def look(request: Request) -> Response:
        return JSONResponse((await desk.look(_receipt_id(request))).to_json())

    async def standing(request: Request) -> Response:
        asked = request.query_params
        try:
            status = Progress(asked.get("status", Progress.DISPUTE_READY))
        except ValueError:
            return problem(422, "invalid", f"status is one of {', '.join(Progress)}")
        found = await desk.standing(status, asked.get("after", ""), _PAGE)
        after = found[-1]["transaction_receipt_id"] if len(found) == _PAGE else None
        return JSONResponse({"receipts": found, "after": after})

    routes: list[tuple[str, str, Route_]] = [
        ("POST", "/receipts", submit),
        ("GET", "/receipts", standing),
        ("GET", "/receipts/{receipt_id}", look),
        ("POST", "/receipts/{receipt_id}/adjudication", adjudicate),
    ]
    return Starlette(
        routes=[Route(path, _guarded(run, token), methods=[method]) for method, path, run in routes],
        exception_handlers={
            HTTPException: _said(lambda error: (error.status_code, "http", error.detail)),
            UnknownReceipt: _said(lambda error: (404, "unknown-receipt", str(error))),
            Conflict: _said(lambda error: (409, "conflict", str(error))),
            BadDecision: _said(lambda error: (422, "invalid", str(error))),
            StoreUnavailable: _said(lambda error: (503, "store-unavailable", f"{error}; try again")),
        },
    )


def problem(status: int, name: str, detail: str, **more: Any) -> Response:
    """Answer with an error: which rule, and what to do."""
    body = {"type": f"urn:redrive:adjudication:{name}", "title": name, "status": status, "detail": detail, **more}
    return Response(json.dumps(body), status, media_type="application/problem+json")


def _said(words: Callable[[Any], tuple[int, str, str]]) -> Any:
    async def handler(_: Request, error: Exception) -> Response:
        return problem(*words(error))

    return handler


def _guarded(run: Route_, token: str | None) -> Route_:
    """Let only those in who may."""

    @wraps(run)
    async def guarded(request: Request) -> Response:
        if token is not None:
            said = request.headers.get("authorization", "")
            if not hmac.compare_digest(said.encode(), f"Bearer {token}".encode()):
                return problem(401, "not-signed-in", "send `Authorization: Bearer …` with the token of this service")
        elif not _is_here(request):
            return problem(403, "forbidden", "only this machine is answered: set ADJUDICATION_TOKEN to serve others")
        return await run(request)

    return guarded


def _is_here(request: Request) -> bool:
    try:
        return request.client is not None and ipaddress.ip_address(request.client.host).is_loopback
    except ValueError:
        return False


def _receipt_id(request: Request) -> str:
    receipt_id: str = request.path_params["receipt_id"]
    try:
        return _RECEIPT_ID.validate_python(receipt_id)
    except ValidationError:
        raise HTTPException(422, "a receipt id has 1 to 100 letters, digits, dots, dashes and underscores") from None


async def _read(request: Request, model: type[M]) -> M:
    """Read the body. JSON only: a page of somebody else cannot send that from a browser unasked."""
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
        raise HTTPException(415, "send application/json")
    body = b""
    async for piece in request.stream():
        body += piece
        if len(body) > _BODY_BYTES:
            raise HTTPException(413, f"a body has at most {_BODY_BYTES:,} bytes")
    try:
        return model.model_validate_json(body)
    except ValidationError as error:
        faults = "; ".join(
            f"{'.'.join(map(str, fault['loc'])) or 'body'}: {fault['msg']}" for fault in error.errors()[:5]
        )
        raise HTTPException(422, faults) from None


def _answered(answer: Answer, created: int) -> Response:
    return JSONResponse(answer.look.to_json(), created if answer.created else 200)
