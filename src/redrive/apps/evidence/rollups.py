"""Roll-ups: the numbers of a row follow from its artifacts, and a reconciler proves that they do.

They are derived in the same transaction that writes outcomes, so nothing should ever be found; what somebody has edited
by hand is found and put right. A second reconciler looks for jobs whose notice is due and was not sent, and a third for
rows whose request a person has called off: they end as failed, or the notices would wait for them for ever.
"""

from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any, Final

from redrive.apps.evidence.attach import Passage, call_off
from redrive.apps.evidence.desk import Desk
from redrive.apps.evidence.notices import Gate

_PAGE: Final = 2_000
_FIRST: Final = "00000000-0000-0000-0000-000000000000"
_SETTLED: Final = timedelta(seconds=30)  # before that a result may be on its way


def status_of(count: int, attached: int, failed: int, row_error: str | None) -> str:
    """Derive the status of a row."""
    if count == 0:
        return "PENDING" if row_error is None else "FAILED"
    if attached == count:
        return "COMPLETED"
    if failed == count:
        return "FAILED"
    return "PARTIALLY_FAILED" if attached + failed else "PENDING"


def register(desk: Desk, gate: Gate) -> None:
    """Add the reconcilers."""
    rollups, notices, requests = _RollUps(desk), _Notices(desk, gate), _Requests(desk)
    every = desk.settings.reconcile_every
    desk.app.reconcilers.add(
        "evidence-rollups", desired=rollups.desired, actual=rollups.actual, converge=rollups.converge,
        look=rollups.look, every=every,
    )  # fmt: skip
    desk.app.reconcilers.add(
        "evidence-notices", desired=notices.desired, actual=notices.actual, converge=notices.converge, every=every
    )
    desk.app.reconcilers.add(
        "evidence-requests", desired=requests.desired, actual=requests.actual, converge=requests.converge, every=every
    )


class _RollUps:
    def __init__(self, desk: Desk) -> None:
        self._desk = desk

    async def desired(self) -> AsyncIterator[tuple[str, Any]]:
        async for id_, count, attached, failed, row_error in self._pages("derived"):
            yield str(id_), [count, attached, failed, status_of(count, attached, failed, row_error)]

    async def actual(self) -> AsyncIterator[tuple[str, Any]]:
        async for id_, *kept in self._pages("kept"):
            yield str(id_), kept

    async def look(self, row_id: str) -> tuple[Any, Any]:
        async with self._desk.app.transaction() as tx:
            found = await self._desk.tables.ask(tx, "derived_one", row_id)
        if not found:
            return None, None
        _, *kept, row_error, count, attached, failed = found[0]
        return [count, attached, failed, status_of(count, attached, failed, row_error)], kept

    async def converge(self, row_id: str, _desired: Any, _actual: Any) -> None:
        tables = self._desk.tables
        async with self._desk.app.transaction() as tx:
            for job_id, *_, count, _, _ in await tables.ask(tx, "derived_one", row_id):
                if count:
                    await tables.do(tx, "roll_up", str(job_id), tables.ids([row_id]), self._desk.app.clock.now())
                else:
                    await tables.do(tx, "clear_empty", row_id)

    async def _pages(self, name: str) -> AsyncIterator[Any]:
        after = _FIRST
        while True:
            async with self._desk.app.transaction() as tx:
                page = await self._desk.tables.ask(tx, name, after, _PAGE)
            for row in page:
                yield row
            if len(page) < _PAGE:
                return
            after = str(page[-1][0])


class _Notices:
    def __init__(self, desk: Desk, gate: Gate) -> None:
        self._desk = desk
        self._gate = gate

    async def desired(self) -> dict[str, Any]:
        """Say which notices open jobs should have had."""
        open_jobs = await self._open()
        return {id_: [n1 or not untried, not (untried or waiting)] for id_, n1, untried, waiting in open_jobs}

    async def actual(self) -> dict[str, Any]:
        return {id_: [n1, False] for id_, n1, _, _ in await self._open()}

    async def converge(self, job_id: str, _desired: Any, _actual: Any) -> None:
        await self._gate.look(job_id)

    async def _open(self) -> list[tuple[str, bool, bool, bool]]:
        before = self._desk.app.clock.now() - _SETTLED
        async with self._desk.app.transaction() as tx:
            rows = await self._desk.tables.ask(tx, "open_jobs", before)
        return [(str(id_), bool(n1), bool(untried), bool(waiting)) for id_, n1, untried, waiting in rows]


class _Requests:
    def __init__(self, desk: Desk) -> None:
        self._desk = desk

    async def desired(self) -> dict[str, Any]:
        return {}

    async def actual(self) -> dict[str, Any]:
        async with self._desk.app.transaction() as tx:
            rows = await self._desk.tables.ask(tx, "called_off", self._desk.app.clock.now() - _SETTLED)
        return {str(row_id): [str(job_id), str(event_id), by, reason] for job_id, row_id, event_id, by, reason in rows}

    async def converge(self, row_id: str, _desired: Any, found: Any) -> None:
        job_id, event_id, by, reason = found
        await call_off(self._desk, Passage(job_id, row_id, event_id), by, reason)
