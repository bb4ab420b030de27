"""Publish over HTTP: our own JSON, or CloudEvents. Answered when it is durable."""

from collections.abc import Sequence
from itertools import accumulate, islice
from typing import Annotated, Any, Final

from fastapi import Request
from pydantic import AwareDatetime, Field, TypeAdapter, ValidationError
from starlette.responses import JSONResponse, Response

from redrive.app import Redrive
from redrive.errors import PayloadRefused
from redrive.event import NewEvent, Options, Published
from redrive.gather import Gather
from redrive.inbox import Draft
from redrive.operate.auth import Permission
from redrive.operate.web import answers, cloudevents, pages
from redrive.operate.web.api.shared import BASE, Strict
from redrive.operate.web.api.shared import router as new_router
from redrive.operate.web.guard import needs, plain
from redrive.operate.web.problems import INVALID, NOT_JSON, Problem
from redrive.payload import parse_strict
from redrive.publish import KEY_LIMIT, NAME_LIMIT

router = new_router("publish")

_Name = Annotated[str, Field(min_length=1, max_length=NAME_LIMIT)]
_Key = Annotated[str, Field(min_length=1, max_length=KEY_LIMIT)]


class New(Strict):
    """An event to be stored. What its texts may hold is looked at when its rows are made."""

    type: _Name
    payload: Any = None
    subject: _Key | None = None
    source: _Name | None = None
    idempotency_key: _Key | None = None
    retry_key: _Key | None = None
    correlation_id: _Name | None = None
    causation_id: _Name | None = None
    headers: dict[str, str] | None = None
    queue: _Name | None = None
    priority: Annotated[int, Field(ge=0, le=3)] | None = None
    delay: str | float | None = Field(None, description="`90s`, `2h`, or seconds")
    due_at: AwareDatetime | None = Field(None, strict=False)
    deadline: str | float | None = Field(None, description="A span from now on: `1h`")
    generation: Annotated[int, Field(ge=0, lt=2**63)] | None = None
    ordering_key: _Key | None = None

    def draft(self) -> Draft:
        """Return what publish takes."""
        said = {name: getattr(self, name) for name in self.model_fields_set - {"type", "payload"}}
        options: Options = {name: value for name, value in said.items() if value is not None}  # type: ignore[assignment]
        return self.type, self.payload, options


_ONE: Final = TypeAdapter(New)
_MANY: Final = TypeAdapter(Annotated[list[New], Field(max_length=cloudevents.MOST)])
_ANSWER: Final = {
    "type": "object",
    "required": ["id", "target", "created"],
    "properties": {
        "id": {"type": "string", "format": "uuid"},
        "target": {"type": "string"},
        "created": {"type": "boolean", "description": "False: a live event has the retry key; this is it."},
    },
}
_ONE_OR_MANY: Final = {"content": {"application/json": {"schema": {"anyOf": [_ANSWER, {
    "type": "object", "required": ["items"], "properties": {"items": {"type": "array", "items": _ANSWER}},
}]}}}}  # fmt: skip
_CLOUD_EVENT: Final = {
    "type": "object",
    "required": ["specversion", "id", "type", "source"],
    "properties": {
        "specversion": {"const": "1.0"},
        **{name: {"type": "string", "minLength": 1} for name in ("id", "type", "source")},
    },
}


def _body_schema() -> dict[str, Any]:
    one = New.model_json_schema()
    return {
        "required": True,
        "content": {
            "application/json": {
                "schema": {"anyOf": [one, {"type": "array", "items": one, "maxItems": cloudevents.MOST}]}
            },
            cloudevents.STRUCTURED: {"schema": _CLOUD_EVENT},
            cloudevents.BATCH: {"schema": {"type": "array", "items": _CLOUD_EVENT, "maxItems": cloudevents.MOST}},
        },
    }


@router.post(
    "/events",
    status_code=201,
    responses={
        200: {"description": "A live event has the retry key; this is it.", **_ONE_OR_MANY},
        201: {"description": "It is stored.", **_ONE_OR_MANY},
        413: {"description": "Too large."},
        415: {"description": "Not taken here."},
    },
    openapi_extra={"requestBody": _body_schema()},
)
@needs(Permission.PUBLISH)
@plain
async def publish(request: Request) -> Response:
    """Store an event, or up to 1,000 in one transaction; answered when they are durable.

    JSON of ours, or CloudEvents 1.0: structured, in a batch, or binary (`ce-…` headers, any data). A `retry_key` that a
    live event has returns that event, with 200. Of a type with several handlers the first one's row is told.
    """
    app: Redrive = request.app.state.redrive
    drafts, is_many = _drafts(request, await request.body())
    rows = [app.new_events(type_, payload, **(options[0] if options else {})) for type_, payload, *options in drafts]
    if not rows:
        return _answer(request, [], is_many=True)
    await app.open()
    if "idempotency-key" not in request.headers:
        # Single events that come at the same time share a commit; many at once have one of their own.
        publishing = app.store.publish if is_many else request.app.state.together
        return _answer(request, _first_of_each(rows, await publishing(_flat(rows))), is_many=is_many)
    async with app.store.transaction() as tx:  # the events and what is answered: both or neither
        answer = _answer(request, _first_of_each(rows, await tx.publish(_flat(rows))), is_many=is_many)
        await answers.keep(tx, request, answer)
    return answer


def together(app: Redrive) -> Gather[Sequence[NewEvent], Sequence[Published]]:
    """Make what stores the rows of several requests in one transaction."""

    async def publish_all(requests: Sequence[Sequence[NewEvent]]) -> list[Sequence[Published]]:
        published = iter(await app.store.publish(_flat(requests)))
        return [list(islice(published, len(rows))) for rows in requests]

    return Gather(publish_all)


def _flat(rows: Sequence[Sequence[NewEvent]]) -> list[NewEvent]:
    return [row for each in rows for row in each]


def _first_of_each(rows: Sequence[Sequence[NewEvent]], published: Sequence[Published]) -> list[Published]:
    """Take of every event what became of its first row."""
    firsts = accumulate((len(each) for each in rows[:-1]), initial=0)
    return [published[place] for place in firsts]


def _drafts(request: Request, body: bytes) -> tuple[Sequence[Draft], bool]:
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if cloudevents.is_binary(request.headers) or kind in (cloudevents.STRUCTURED, cloudevents.BATCH):
        return cloudevents.read(kind, request.headers, body), kind == cloudevents.BATCH
    if kind != "application/json":
        raise Problem(NOT_JSON, f"{kind[:100] or 'a body without a type'} is not taken here: send JSON or a CloudEvent")
    is_many = body.lstrip()[:1] == b"["
    try:
        sent = parse_strict(body)
        if is_many:
            return [each.draft() for each in _MANY.validate_python(sent)], True
        return [_ONE.validate_python(sent).draft()], False
    except ValidationError as error:
        raise _invalid(error) from None
    except PayloadRefused:
        raise
    except ValueError as error:
        fault = {"in": "body", "pointer": "/", "detail": f"Invalid JSON: {str(error)[:300]}"}
        raise Problem(INVALID, "the event does not fit", errors=[fault]) from None


def _invalid(error: ValidationError) -> Problem:
    faults = [
        {"in": "body", "pointer": "/" + "/".join(map(str, each["loc"])), "detail": each["msg"][:300]}
        for each in error.errors(include_url=False, include_input=False, include_context=False)[:20]
    ]
    return Problem(INVALID, "the event does not fit", errors=faults)


def _answer(request: Request, published: Sequence[Published], *, is_many: bool) -> Response:
    told = [{"id": str(each.id), "target": each.target, "created": each.created} for each in published]
    if is_many:
        return JSONResponse({"items": told}, 201 if any(each.created for each in published) else 200)
    place = f"{pages.root(request)}{BASE}/events/{published[0].id}"
    return JSONResponse(told[0], 201 if published[0].created else 200, {"Location": place})
