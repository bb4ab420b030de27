"""A gate for PostgreSQL: it holds somebody up in the middle of a verb, while somebody else runs beside.

The first is stopped before one of its statements, its commit too, or at one of the rows that it changes: a trigger of
the lab's waits there, only in its connections. The second runs until it has ended or waits for the first.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import asyncpg

from redrive import Redrive

GATE = 4711
STATEMENT, CHANGE = "statement", "change"
_LOOK_SECONDS = 0.001
_LONG_SECONDS = 20.0

# Counts what the first verb changes, and waits at the place that was said. A sequence counts on through roll-backs.
_GATES = f"""
create sequence lab_change;
create table lab_stop (at bigint not null);
insert into lab_stop values (0);
create function lab_pass() returns trigger language plpgsql as $$
begin
    if coalesce(current_setting('lab.held', true), '') = 'on' then
        if nextval('lab_change') = (select at from lab_stop) then
            perform pg_advisory_xact_lock_shared({GATE});
        end if;
    end if;
    if tg_op = 'DELETE' then
        return old;
    end if;
    return new;
end $$;
"""
_TRIGGER = (
    "create trigger lab_pass_{number} before insert or update or delete on {table}"
    " for each row execute function lab_pass()"
)

_WAITING = (
    "select exists (select from pg_locks where not granted and"
    " (locktype = 'advisory' and classid = 0 and objid = $1::int) = $2)"
)


@dataclass(frozen=True, slots=True)
class Place:
    """Where the first verb is held up: before a statement, or at a change of a row; both are counted from one."""

    kind: str
    number: int

    def __str__(self) -> str:
        return f"{self.kind}:{self.number}"


class Gate:
    """Stops the one who comes to the place that was said, until it is opened."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._place: Place | None = None
        self._statements = 0
        self._is_reached = asyncio.Event()
        self._opened = asyncio.Event()

    @property
    def way(self) -> str:
        """The URL of the one who is held up."""
        return f"{self.url}{'&' if '?' in self.url else '?'}options=-clab.held%3Don"

    def stand_before(self, app: Redrive) -> None:
        """Have the statements of an app pass here."""
        connect = app.store.connect  # type: ignore[attr-defined]

        async def connected(**options: Any) -> Any:
            connection = await connect(**options)
            connection.__class__ = _halting(self, type(connection))
            return connection

        app.store.connect = connected  # type: ignore[attr-defined]

    async def open(self, tables: Iterable[str]) -> None:
        self._watch = await asyncpg.connect(self.url)
        await self._watch.execute(_GATES)
        for number, table in enumerate(tables):
            await self._watch.execute(_TRIGGER.format(number=number, table=table))

    async def close(self) -> None:
        await self._watch.close()

    async def places(self, verb: Callable[[], Awaitable[Any]]) -> list[Place]:
        """Let it run by itself, and see where it could be held up."""
        async with self._closed(None):
            await verb()
        changes = await self._watch.fetchval("select case when is_called then last_value else 0 end from lab_change")
        statements = (Place(STATEMENT, n) for n in range(2, self._statements + 1))
        return [*statements, *(Place(CHANGE, n) for n in range(1, changes + 1))]

    async def meanwhile(
        self, place: Place, one: Callable[[], Awaitable[Any]], two: Callable[[], Awaitable[Any]]
    ) -> tuple[tuple[Any, Any], bool]:
        """Hold the first up there, let the second run, let the first go on; return the answers, and who had to wait."""
        async with self._closed(place):
            before = asyncio.ensure_future(one())
            await self._held_up(before)
            after = asyncio.ensure_future(two())
            waits = await self._waits(after)
        return (await before, await after), waits

    @asynccontextmanager
    async def _closed(self, place: Place | None) -> AsyncIterator[None]:
        at = place.number if place is not None and place.kind == CHANGE else 0
        await self._watch.execute("select setval('lab_change', 1, false)")
        await self._watch.execute("update lab_stop set at = $1", at)
        if at:
            await self._watch.execute("select pg_advisory_lock($1)", GATE)
        self._place, self._statements = place, 0
        self._is_reached.clear()
        self._opened.clear()
        try:
            yield
        finally:
            self._opened.set()
            if at:
                await self._watch.execute("select pg_advisory_unlock($1)", GATE)

    async def pass_statement(self) -> None:
        self._statements += 1
        if self._place == Place(STATEMENT, self._statements):
            self._is_reached.set()
            await self._opened.wait()

    async def _held_up(self, task: asyncio.Future[Any]) -> None:
        end = time.monotonic() + _LONG_SECONDS
        while not (task.done() or self._is_reached.is_set() or await self._locks(at_gate=True)):
            assert time.monotonic() < end, "it neither ends nor comes to the gate"
            await asyncio.sleep(_LOOK_SECONDS)

    async def _waits(self, task: asyncio.Future[Any]) -> bool:
        end = time.monotonic() + _LONG_SECONDS
        while not task.done():
            if await self._locks(at_gate=False):
                return True
            assert time.monotonic() < end, "the second neither ends nor waits for the first"
            await asyncio.sleep(_LOOK_SECONDS)
        return False

    async def _locks(self, *, at_gate: bool) -> bool:
        """Tell whether somebody waits: at the gate, or for anything else."""
        return bool(await self._watch.fetchval(_WAITING, GATE, at_gate))


def _halting(gate: Gate, kind: type[Any]) -> type[Any]:
    """Make the class of connections whose statements pass the gate."""

    class Halting(kind):  # type: ignore[misc]
        __slots__ = ()

        async def execute(self, *arguments: Any, **options: Any) -> Any:
            await gate.pass_statement()
            return await super().execute(*arguments, **options)

        async def fetch(self, *arguments: Any, **options: Any) -> Any:
            await gate.pass_statement()
            return await super().fetch(*arguments, **options)

        async def fetchrow(self, *arguments: Any, **options: Any) -> Any:
            await gate.pass_statement()
            return await super().fetchrow(*arguments, **options)

        async def fetchval(self, *arguments: Any, **options: Any) -> Any:
            await gate.pass_statement()
            return await super().fetchval(*arguments, **options)

    return Halting
