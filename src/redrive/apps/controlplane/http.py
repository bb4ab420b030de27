"""HTTP: requests come in, are looked at, and are called off. Mounted below /controlplane."""

import hmac
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator
from starlette.applications import Starlette
from starlette.requests import Request as Call
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from redrive import Redrive, Refused, StoreUnavailable
from redrive.apps.controlplane.request import Request
from redrive.apps.controlplane.requests import Requests
from redrive.apps.controlplane.words import ENDED, MOST_GIGABYTES, SIZES, State
from redrive.operate.task import Task, task

_BODY_BYTES: Final = 10_000
_KEY_CHARACTERS: Final = 200

Endpoint = Callable[[Call], Awaitable[Response]]


class Asked(BaseModel):
    """The body of a request."""

    model_config = ConfigDict(extra="forbid")

    owner: str = Field(min_length=1, max_length=100)
    size: str = "small"
    volume_gb: int = Field(default=10, ge=1, le=MOST_GIGABYTES)
    image: str = Field(default="debian-13", min_length=1, max_length=100)
    site: str | None = Field(default=None, max_length=100)

    @field_validator("size")
    @classmethod
    def _size(cls, size: str) -> str:
        if size not in SIZES:
            raise ValueError(f"there is no size {size!r}: there are {', '.join(SIZES)}")
        return size


class CallOff(BaseModel):
    """Who calls a request off, and why."""

    model_config = ConfigDict(extra="forbid")

    by: str = Field(min_length=1, max_length=200)
    reason: str = Field(min_length=1, max_length=500)


class _Wrong(Exception):
    """What the caller did wrong."""

    def __init__(self, status: int, said: str) -> None:
        super().__init__(said)
        self.status = status


class Front:
    """What can be asked of a site."""

    def __init__(self, requests: Requests, places: Sequence[Redrive | str], token: str | None) -> None:
        self._requests = requests
        self._places = places
        self._token = token

    async def submit(self, call: Call) -> Response:
        """Take a request; with an Idempotency-Key that was there, answer with that one."""
        asked = await _read(call, Asked)
        key = call.headers.get("idempotency-key")
        if key is not None and not 0 < len(key) <= _KEY_CHARACTERS:
            raise _Wrong(400, f"an Idempotency-Key has at most {_KEY_CHARACTERS} characters")
        try:
            made = await self._requests.submit(**asked.model_dump(), key=key)
        except Refused as error:
            raise _Wrong(422, str(error)) from None
        return JSONResponse(made.to_json(), 202, headers={"location": str(call.url_for("show", id=made.id))})

    async def show(self, call: Call) -> Response:
        """Show a request, everything that was done for it, and whether a person must act."""
        found = await self._requests.get(call.path_params["id"])
        if found is None:
            raise _Wrong(404, f"there is no request {call.path_params['id']!r}")
        seen = await task(self._places, found.id)
        return JSONResponse({**found.to_json(), "needs_a_person": _why_a_person(found, seen), "task": seen.to_json()})

    async def ls(self, call: Call) -> Response:
        """List the latest requests."""
        state = call.query_params.get("state")
        if state is not None and state not in list(State):
            raise _Wrong(400, f"there is no state {state!r}: there are {', '.join(State)}")
        found = await self._requests.ls(state=state)
        return JSONResponse({"requests": [each.to_json() for each in found]})

    async def call_off(self, call: Call) -> Response:
        """Cancel a request, or give back what it has."""
        said = await _read(call, CallOff)
        try:
            request = await self._requests.cancel(call.path_params["id"], by=said.by, reason=said.reason)
        except LookupError as error:
            raise _Wrong(404, str(error)) from None
        except Refused as error:
            raise _Wrong(409, str(error)) from None
        return JSONResponse(request.to_json(), 202)

    def guarded(self, endpoint: Endpoint) -> Endpoint:
        """Let nobody in without the token, and answer what is wrong as JSON."""

        async def answer(call: Call) -> Response:
            try:
                _check(call, self._token)
                return await endpoint(call)
            except _Wrong as wrong:
                return JSONResponse({"error": str(wrong)}, wrong.status)
            except StoreUnavailable as error:
                return JSONResponse({"error": str(error)}, 503, headers={"retry-after": "1"})

        return answer


def http(requests: Requests, places: Sequence[Redrive | str], token: str | None) -> Starlette:
    """Make the ASGI app. ``places``: where the events of a request may be; ``token``: what a caller must bring."""
    front = Front(requests, places, token)
    return Starlette(
        routes=[
            Route("/requests", front.guarded(front.submit), methods=["POST"]),
            Route("/requests", front.guarded(front.ls), methods=["GET"]),
            Route("/requests/{id}", front.guarded(front.show), methods=["GET"], name="show"),
            Route("/requests/{id}", front.guarded(front.call_off), methods=["DELETE"]),
        ]
    )


def _check(call: Call, token: str | None) -> None:
    brought = call.headers.get("authorization", "").removeprefix("Bearer ")
    if token is not None and not hmac.compare_digest(brought.encode(), token.encode()):
        raise _Wrong(401, "bring the token of this control plane: Authorization: Bearer …")


async def _read(call: Call, model: type[BaseModel]) -> Any:
    body = b""
    async for part in call.stream():
        body += part
        if len(body) > _BODY_BYTES:
            raise _Wrong(413, f"a request has at most {_BODY_BYTES:,} bytes")
    try:
        return model.model_validate_json(body or b"{}")
    except ValidationError as error:
        raise _Wrong(422, "; ".join(_said(each) for each in error.errors())) from None


def _said(error: Any) -> str:
    where = ".".join(str(each) for each in error["loc"])
    what = str(error["msg"]).removeprefix("Value error, ")
    return f"{where}: {what}" if where else what


def _why_a_person(request: Request, seen: Task) -> str | None:
    """Say why a person must act, if so: the request has not ended, and a dead letter holds it up."""
    if request.state in ENDED or request.state is State.READY:
        return None
    dead = [each.event for each in seen.events if each.event.is_dead_letter]
    holds = [event for event in dead if not event.type.endswith(".wanted")]
    if not holds:
        return None
    first = holds[0]
    return f"{first.target} is in quarantine ({first.error_class}): mend the cause, then `redrive replay {first.id}`"
