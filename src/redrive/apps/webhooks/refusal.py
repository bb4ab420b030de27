"""Refusal: what is told to a sender whose message is not taken, and what an operator sees of it.

Anybody can send rubbish, so rubbish must not fill the store: for each source and reason there is one row with a count
and the latest example, written at once and then at most once a second. A source that nobody has configured has no row
of its own, whatever it calls itself.
"""

import asyncio
from collections.abc import Callable
from contextvars import Context
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

import structlog

from redrive import Redrive, RedriveError

_PAUSE_SECONDS: Final = 1.0
_LONGEST: Final = 200
log = structlog.get_logger("redrive.webhooks")


class Refusal(Exception):
    """A message that is not taken: why, in one word for the record and one sentence for the sender."""

    def __init__(self, status: int, reason: str, detail: str, *, closes: bool = False) -> None:
        super().__init__(detail)
        self.status = status
        self.reason = reason
        self.detail = detail
        self.closes = closes
        """The body was not read to its end: the connection is of no further use."""


def unknown_source() -> Refusal:
    """Nobody has configured it."""
    return Refusal(404, "unknown-source", "there is no such source here: check the address", closes=True)


def wrong_method() -> Refusal:
    """Not a POST."""
    return Refusal(405, "method", "webhooks are sent with POST", closes=True)


def not_local() -> Refusal:
    """Unsigned, and from elsewhere."""
    detail = "this source takes unsigned messages, and from this machine only: sign them, or configure open = true"
    return Refusal(403, "not-local", detail, closes=True)


def too_large(limit: int) -> Refusal:
    """More than we take."""
    return Refusal(413, "too-large", f"the body has more than {limit:,} bytes", closes=True)


def too_slow(seconds: float) -> Refusal:
    """Longer than we wait."""
    return Refusal(408, "too-slow", f"the body did not come within {seconds:g} s", closes=True)


def bad_headers(detail: str) -> Refusal:
    """Something is missing or cannot be read."""
    return Refusal(400, "headers", detail)


def wrong_signature() -> Refusal:
    """Not from whom it says."""
    return Refusal(401, "signature", "no signature fits this body and a secret of this source")


def wrong_time(off: float, tolerance: float) -> Refusal:
    """Too old, or from the future."""
    which = f"{off:.0f} s old" if off > 0 else f"{-off:.0f} s ahead"
    return Refusal(401, "timestamp", f"the message is {which}, and {tolerance:.0f} s are allowed: sign it again")


@dataclass(slots=True)
class _Tally:
    count: int
    first_at: datetime
    last_at: datetime
    detail: str
    peer: str


class Refusals:
    """Counts refusals, and writes the counts down."""

    def __init__(self, app: Redrive, statement: str) -> None:
        self._app = app
        self._statement = statement
        self._new: dict[tuple[str, str], _Tally] = {}
        self._writing: asyncio.Task[None] | None = None
        self._pauses = False

    def count(self, source: str, refusal: Refusal, peer: str) -> None:
        """Count one; ``source`` is a configured one, or empty."""
        now = self._app.clock.now()
        tally = self._new.setdefault((source, refusal.reason), _Tally(0, now, now, "", ""))
        tally.count += 1
        tally.last_at, tally.detail, tally.peer = now, refusal.detail[:_LONGEST], peer[:_LONGEST]
        if self._writing is None:
            self._writing = asyncio.create_task(self._write(), context=Context())

    async def settle(self) -> None:
        """Write down now what was counted."""
        while self._writing is not None:
            if self._pauses:
                self._writing.cancel()
            await asyncio.wait((self._writing,))
        await self._put_new()

    async def _write(self) -> None:
        try:
            while self._new:
                await self._put_new()
                self._pauses = True
                await self._app.clock.sleep(_PAUSE_SECONDS)
                self._pauses = False
        finally:
            self._writing, self._pauses = None, False

    async def _put_new(self) -> None:
        new, self._new = self._new, {}
        for (source, reason), tally in new.items():
            log.warning("webhooks refused", source=source, reason=reason, count=tally.count, peer=tally.peer)
        if new:
            await self._put(new)

    async def _put(self, new: dict[tuple[str, str], _Tally]) -> None:
        at: Callable[[datetime], Any] = datetime.isoformat if self._app.dialect == "sqlite" else _same
        try:
            async with self._app.transaction() as tx:
                for (source, reason), tally in sorted(new.items(), key=lambda each: each[0]):
                    await tx.execute(
                        self._statement, source, reason, tally.count, at(tally.first_at), at(tally.last_at),
                        tally.detail, tally.peer,
                    )  # fmt: skip
        except RedriveError as error:  # nothing else depends on it: the log has the counts
            log.error("refusals not written down", error=str(error))


def _same(at: datetime) -> datetime:
    return at
