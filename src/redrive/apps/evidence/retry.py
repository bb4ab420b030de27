"""Retry: the scheduler that asks for another attempt at what failed and may succeed.

One at a time, by a lock that runs out when its holder dies; a holder that was slow and lost it can write nothing, since
each batch is guarded by the lock in its own transaction. Of each job some hundred rows at a time, with a pause, so that
what comes back after an outage does not flood the case API. Marking the artifacts and publishing the request for their
row are one commit. While the circuit of the case API is open nothing is asked for.
"""

from datetime import datetime
from typing import Any, Final

from redrive import Lock
from redrive.apps.evidence.cases import DEPENDENCY
from redrive.apps.evidence.desk import RETRY, SCHEDULER, Desk

LOCK: Final = "evidence-retry-scheduler"


def register(desk: Desk) -> None:
    """Add the handler, and have it called."""

    @desk.app.handler(SCHEDULER, effects="inside")
    async def look(_payload: Any) -> None:
        await requeue_all(desk)

    desk.app.schedules.add(
        "evidence-retries", SCHEDULER, every=desk.settings.scheduler_every, catch_up="skip",
        retry_key="evidence-retries",
    )  # fmt: skip


async def requeue_all(desk: Desk) -> int:
    """Requeue every row that is due, of one job after the other; return how many. Somebody else at it: none."""
    clock, began, requeued = desk.app.clock, desk.app.clock.monotonic(), 0
    async with desk.app.locks.try_hold(LOCK, ttl="30s") as lock:
        if lock is None:
            return 0
        shut = any(each.name == DEPENDENCY and each.is_shut for each in await desk.app.dependencies())
        for job_id in [] if shut else await _due_jobs(desk):
            while (rows := await _requeue(desk, lock, job_id)) > 0:
                requeued += rows
                await _beat(desk, clock.monotonic() - began, rows)
                await _pause(desk)
        await _beat(desk, clock.monotonic() - began, 0, circuit_open=shut)
    return requeued


async def _due_jobs(desk: Desk) -> list[str]:
    async with desk.app.transaction() as tx:
        return [str(row[0]) for row in await desk.tables.ask(tx, "due_jobs", desk.app.clock.now())]


async def _requeue(desk: Desk, lock: Lock, job_id: str) -> int:
    """Requeue one batch of a job."""
    now: datetime = desk.app.clock.now()
    async with desk.app.transaction() as tx:
        await lock.guard(tx.connection)
        await desk.tables.by_index(tx)
        due = [str(row[0]) for row in await desk.tables.ask(tx, "due_rows", job_id, now, desk.settings.batch_rows)]
        if not due:
            return 0
        marked: dict[str, int] = {}
        for row_id, retry_count in await desk.tables.ask(tx, "requeue", job_id, desk.tables.ids(due), now):
            marked[str(row_id)] = max(marked.get(str(row_id), 0), retry_count + 1)
        rows: dict[str, tuple[str, list[tuple[str, str]]]] = {}
        for row_id, id_, key, case_id in await desk.tables.ask(tx, "artifacts_of", job_id, desk.tables.ids(marked)):
            rows.setdefault(str(row_id), (str(case_id), []))[1].append((str(id_), key))
        if rows:
            await desk.request(tx, RETRY, job_id, rows, now, marked)
    return len(rows)


async def _pause(desk: Desk) -> None:
    least, most = desk.settings.batch_pause
    if most > 0:
        await desk.app.clock.sleep(least + (most - least) * desk.app.clock.random())


async def _beat(desk: Desk, seconds: float, rows: int, *, circuit_open: bool = False) -> None:
    """Write down that the scheduler is alive, and how it fared."""
    async with desk.app.transaction() as tx:
        await desk.tables.do(tx, "heartbeat", desk.app.clock.now(), seconds, rows, int(circuit_open))
