"""Keep: store a message once, and say so only when it is durable.

That a message has come, and its events, are one commit; messages that come at the same time share it. One that is there
already (its sender did not hear our answer) is answered as the first was, and stored no second time.
"""

import base64
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final
from uuid import UUID

from redrive import Gather, PayloadRefused, Redrive, Work
from redrive.apps.webhooks.settings import Source
from redrive.apps.webhooks.tables import statements

RAW: Final = "webhook-raw"
"""The header of an event whose payload is the body as it came: ``text`` or ``base64``."""


@dataclass(frozen=True, slots=True)
class Arrived:
    """A genuine message."""

    source: Source
    message_id: str | None
    body: bytes
    payload: Any
    headers: Mapping[str, str]

    @property
    def key(self) -> tuple[str, str] | None:
        return None if self.message_id is None else (self.source.name, self.message_id)


@dataclass(frozen=True, slots=True)
class Kept:
    """What became of it: the event, or nothing new."""

    event_id: UUID | None

    @property
    def is_new(self) -> bool:
        return self.event_id is not None


_KNOWN: Final = Kept(None)
Draft = tuple[str, Any, Any]


class Keeper:
    """Stores what arrives."""

    def __init__(self, app: Redrive) -> None:
        self._app = app
        self._say = statements(app.dialect)
        self._together: Gather[Arrived, Kept] = Gather(self._store)

    async def keep(self, arrived: Arrived) -> Kept:
        """Store a message; when this returns it is durable."""
        try:
            return await self._together(arrived)
        except PayloadRefused:  # JSON that no database would give back as it was: kept as it came
            return await self._together(raw(arrived))

    async def _store(self, group: Sequence[Arrived]) -> list[Kept]:
        async with self._app.transaction() as tx:
            new = await self._new(tx, group)
            published = await tx.publish_many(map(_draft, new.values()))
        ids = {place: Kept(each.id) for place, each in zip(new, published, strict=True)}
        return [ids.get(place, _KNOWN) for place in range(len(group))]

    async def _new(self, tx: Work, group: Sequence[Arrived]) -> dict[int, Arrived]:
        """Find those that were not there, by their place in the group; of equals the first."""
        firsts: dict[tuple[str, str], int] = {}
        for place, each in enumerate(group):
            if each.key is not None:
                firsts.setdefault(each.key, place)
        rows = await self._take(tx, sorted(firsts)) if firsts else []
        taken = {firsts[source, message_id] for source, message_id in rows}
        return {place: each for place, each in enumerate(group) if each.key is None or place in taken}

    async def _take(self, tx: Work, keys: Sequence[tuple[str, str]]) -> list[Any]:
        return await tx.fetch(self._say.take, json.dumps(keys), int(self._app.clock.now().timestamp()))

    async def forget(self, days: float, most: int = 5_000) -> int:
        """Forget messages that came so long ago that nobody sends them again."""
        before = int(self._app.clock.now().timestamp() - days * 86_400)
        gone = 0
        while True:
            async with self._app.transaction() as tx:
                some = await tx.execute(self._say.forget, before, most)
            gone += some
            if some < most:
                return gone


def _draft(arrived: Arrived) -> Draft:
    options: dict[str, Any] = {"source": f"webhooks/{arrived.source.name}", "headers": arrived.headers}
    if arrived.message_id is not None:
        options |= {"subject": arrived.message_id, "idempotency_key": "#".join(arrived.key or ())}
    return arrived.source.type, arrived.payload, options


def arrived_as(source: Source, message_id: str | None, body: bytes, value: Any, headers: Mapping[str, str]) -> Arrived:
    """Make what is stored: the value of JSON, or the body itself."""
    plain = Arrived(source, message_id, body, value, headers)
    return raw(plain) if source.keep == "raw" or value is NOT_JSON else plain


def raw(arrived: Arrived) -> Arrived:
    """Take the body as it came: as text if it is one."""
    body, headers = arrived.body, dict(arrived.headers)
    try:
        text = body.decode("utf-8")
    except UnicodeDecodeError:
        text = "\0"
    if "\0" in text:
        payload, headers[RAW] = {"base64": base64.b64encode(body).decode("ascii")}, "base64"
    else:
        payload, headers[RAW] = {"text": text}, "text"
    return Arrived(arrived.source, arrived.message_id, body, payload, headers)


def body_of(payload: Any, headers: Mapping[str, str]) -> bytes:
    """Give the body back: as it came if it was kept so, else as JSON of the same value."""
    kind = headers.get(RAW)
    if kind == "text":
        return str(payload["text"]).encode()
    if kind == "base64":
        return base64.b64decode(payload["base64"])
    return json.dumps(payload, ensure_ascii=False, separators=(",", ":")).encode()


NOT_JSON: Final = object()


def read_json(body: bytes) -> Any:
    """Read JSON; anything else is ``NOT_JSON``."""
    try:
        return json.loads(body.decode("utf-8"), parse_constant=_no_constant)
    except (ValueError, RecursionError):
        return NOT_JSON


def _no_constant(name: str) -> Any:
    raise ValueError(name)
