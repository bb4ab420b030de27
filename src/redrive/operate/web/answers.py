"""Answers: a call with an ``Idempotency-Key`` has its effect once, and is answered the same for a day.

The key belongs to who calls. Only what was done is kept: a call that was refused has changed nothing, and may be made
again with its key. A call whose server died on the way gives its key up after a minute.
"""

import hashlib
import json
from collections.abc import Awaitable, Callable
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response

from redrive.app import Redrive
from redrive.errors import StoreUnavailable
from redrive.logs import log
from redrive.operate.auth import Caller
from redrive.operate.web.problems import INVALID, KEY_REUSED, UNDER_WAY, Problem
from redrive.store.base import Transaction

KEPT_SECONDS: Final = 86_400.0
PATIENCE_SECONDS: Final = 60.0
_LONGEST_KEY: Final = 255
_LARGEST_ANSWER: Final = 1_048_576
_KEPT_HEADERS: Final = ("content-type", "location", "etag")
_FAILED: Final = 400


async def once(
    app: Redrive, request: Request, caller: Caller, inner: Callable[[Request], Awaitable[Response]]
) -> Response:
    """Make a call, unless it was made before: then say again what was answered."""
    place = request.state.answer = {"caller": caller.actor, "key": _key(request), "request": await _digest(request)}
    await app.open()
    async with app.store.transaction() as tx:
        await tx.run("answers_purge", limit=100)
        is_first = bool(await tx.run("answer_begin", seconds=KEPT_SECONDS, patience=PATIENCE_SECONDS, **place))
    if not is_first:
        return await _again(app, place)
    try:
        response = await inner(request)
    except BaseException:
        await _drop(app, place)
        raise
    if response.status_code >= _FAILED or len(getattr(response, "body", bytes(_LARGEST_ANSWER))) >= _LARGEST_ANSWER:
        await _drop(app, place)
    else:
        try:
            async with app.store.transaction() as tx:
                await keep(tx, request, response)
        except StoreUnavailable as error:  # what was asked for is done: the caller shall know
            log.warning("answer not kept for its idempotency key", key=place["key"], error=str(error))
    return response


async def keep(tx: Transaction, request: Request, response: Response) -> None:
    """Keep an answer, in the transaction of what it speaks of if that is at hand. Without a key nothing is kept."""
    place = getattr(request.state, "answer", None)
    if place is not None:
        headers = {name: response.headers[name] for name in _KEPT_HEADERS if name in response.headers}
        body = bytes(response.body).decode("utf-8")
        await tx.run("answer_keep", status=response.status_code, headers=json.dumps(headers), body=body, **place)


async def _again(app: Redrive, place: dict[str, str]) -> Response:
    rows = await app.store.ask("answer_get", caller=place["caller"], key=place["key"])
    if rows and rows[0]["request"] != place["request"]:
        raise Problem(KEY_REUSED, "a call with this Idempotency-Key had another path or body")
    if not rows or rows[0]["status"] is None:
        raise Problem(UNDER_WAY, "a call with this Idempotency-Key has not been answered yet")
    headers = {**json.loads(rows[0]["headers"]), "Idempotency-Replayed": "true"}
    return Response(rows[0]["body"], rows[0]["status"], headers)


async def _drop(app: Redrive, place: dict[str, str]) -> None:
    try:
        async with app.store.transaction() as tx:
            await tx.run("answer_drop", **place)
    except StoreUnavailable as error:
        log.debug("idempotency key not given back", key=place["key"], error=str(error))


def _key(request: Request) -> str:
    key = request.headers["idempotency-key"].strip()
    if not key or len(key) > _LONGEST_KEY or not key.isascii() or not key.isprintable():
        raise Problem(INVALID, f"an Idempotency-Key has 1 to {_LONGEST_KEY} printable ASCII characters")
    return key


async def _digest(request: Request) -> str:
    body = await request.body()
    parts: tuple[Any, ...] = (
        request.method,
        request.scope["path"],
        request.url.query,
        request.headers.get("content-type"),
    )
    return hashlib.sha256(json.dumps(parts).encode() + b"\n" + body).hexdigest()
