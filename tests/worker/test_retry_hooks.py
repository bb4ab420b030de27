"""What happens together with a scheduled retry, and what becomes of hooks that fail."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import structlog

from redrive import DeadLetter, DependencyUnavailable, Redrive, Rejected, Retry, RetryPolicy, Settling, Status
from redrive.operate.metrics import written_anew
from tests.waiting import until
from tests.worker.conftest import found, working

QUICK = RetryPolicy(max_attempts=3, base_delay=0.01, jitter="none")
SLOW = RetryPolicy(max_attempts=3, base_delay="4m", jitter="none")


@pytest.fixture
async def evidence(app: Redrive) -> None:
    async with app.transaction() as tx:
        await tx.execute("create table evidence (attempt integer, next_retry_at text check (next_retry_at <> 'bad'))")


async def write(retry: Retry, tx: Settling) -> None:
    at = f"{retry.attempts}, '{retry.next_retry_at.isoformat()}'"
    await tx.execute(f"insert into evidence values ({at})")


async def written(app: Redrive) -> list[tuple[int, str]]:
    async with app.transaction() as tx:
        return [(row[0], row[1]) for row in await tx.fetch("select * from evidence order by attempt")]


async def hooks_that_failed(app: Redrive, hook: str) -> str:
    (line,) = [
        line
        for line in (await written_anew(app)).decode().splitlines()
        if line.startswith(f'redrive_hook_failures_total{{hook="{hook}"')
    ]
    return line.rpartition(" ")[2]


@pytest.mark.req("A4")
@pytest.mark.usefixtures("evidence")
async def test_a_hook_writes_in_the_transaction_that_schedules_the_retry(app: Redrive) -> None:
    seen: list[Any] = []

    async def on_retry(retry: Retry, tx: Settling) -> None:
        await write(retry, tx)
        seen.append(retry)

    @app.handler("settle", retry=SLOW, on_retry=on_retry)
    async def settle(payload: Any) -> None:
        raise ConnectionError("bank is away")

    published = await app.publish("settle", {"receipt": "r-1"}, retry_key="r-1:release")
    await app.worker().drain()

    event = await found(app, published.id)
    assert (event.status, event.attempts) == (Status.PENDING, 1)
    assert await written(app) == [(1, event.due_at.isoformat())]
    (retry,) = seen
    assert (retry.id, retry.retry_key, retry.payload) == (published.id, "r-1:release", {"receipt": "r-1"})
    assert retry.last_error.startswith("ConnectionError: bank is away")
    assert [entry.kind for entry in await app.trail(published.id)] == ["retry-scheduled"]


async def test_the_hook_is_called_after_each_attempt_but_the_last(app: Redrive) -> None:
    calls: list[tuple[str, int]] = []

    async def on_retry(retry: Retry, tx: Settling) -> None:
        calls.append(("retry", retry.attempts))

    async def on_dead_letter(letter: DeadLetter, tx: Settling) -> None:
        calls.append(("dead letter", letter.attempts))

    @app.handler("settle", retry=QUICK, on_retry=on_retry, on_dead_letter=on_dead_letter)
    async def settle(payload: Any) -> None:
        raise ConnectionError("bank is away")

    published = await app.publish("settle")
    async with working(app) as worker:
        await until(lambda: worker.tally.dead_lettered == 1)

    assert calls == [("retry", 1), ("retry", 2), ("dead letter", 3)]
    assert (await found(app, published.id)).status is Status.FAILED


async def test_a_dead_letter_knows_when_it_became_one(app: Redrive) -> None:
    letters: list[DeadLetter] = []

    async def keep(letter: DeadLetter, tx: Settling) -> None:
        letters.append(letter)

    @app.handler("settle", on_dead_letter=keep)
    async def settle(payload: Any) -> None:
        raise Rejected("no funds")

    published = await app.publish("settle")
    await app.worker().drain()

    assert [letter.failed_at for letter in letters] == [(await found(app, published.id)).ended_at]


async def test_an_attempt_that_does_not_count_is_told_as_that(app: Redrive) -> None:
    seen: list[int] = []

    async def on_retry(retry: Retry, tx: Settling) -> None:
        seen.append(retry.attempts)

    @app.handler("settle", on_retry=on_retry)
    async def settle(payload: Any) -> None:
        raise DependencyUnavailable("bank")

    await app.publish("settle")
    await app.worker().drain()

    assert seen == [0]


@pytest.mark.req("A6")
async def test_a_hook_that_fails_is_an_error_and_the_retry_is_scheduled_all_the_same(app: Redrive) -> None:
    calls: list[int] = []

    async def on_retry(retry: Retry, tx: Settling) -> None:
        calls.append(1)
        await tx.execute("insert into evidence_that_is_not_there values (1)")

    @app.handler("settle", retry=SLOW, on_retry=on_retry)
    async def settle(payload: Any) -> None:
        raise ConnectionError("bank is away")

    published = await app.publish("settle")
    assert await hooks_that_failed(app, "on_retry") == "0.0"
    with structlog.testing.capture_logs() as logs:
        await app.worker().drain()

    event = await found(app, published.id)
    assert (event.status, event.attempts, len(calls)) == (Status.PENDING, 1, 3)
    said = [entry for entry in logs if entry["event"] == "evidence not written"]
    assert [(entry["log_level"], entry["hook"], entry["event_id"]) for entry in said] == [
        ("error", "on_retry", str(published.id))
    ]
    assert [entry.kind for entry in await app.trail(published.id)] == ["evidence-failed", "retry-scheduled"]
    assert await hooks_that_failed(app, "on_retry") == "1.0"
    (matter,) = await app.attention(kinds=["hook"])
    assert matter.sentence.startswith("The on_retry hook of settle failed for 1 event: what it should have written")


@pytest.mark.req("A6")
@pytest.mark.usefixtures("evidence")
async def test_what_a_hook_can_do_without_is_undone_alone_and_is_an_error(app: Redrive) -> None:
    async with app.transaction() as tx:
        await tx.execute("create table dispute (state text)")

    async def escalate(letter: DeadLetter, tx: Settling) -> None:
        await tx.execute("insert into dispute values ('re-escalated')")
        async with tx.best_effort("evidence"):
            await tx.execute("insert into evidence values (1, 'fine')")
            await tx.execute("insert into evidence values (2, 'bad')")
        await tx.execute("insert into dispute values ('told')")

    @app.handler("settle", on_dead_letter=escalate)
    async def settle(payload: Any) -> None:
        raise Rejected("no funds")

    published = await app.publish("settle")
    with structlog.testing.capture_logs() as logs:
        await app.worker().drain()

    async with app.transaction() as tx:
        assert [row[0] for row in await tx.fetch("select state from dispute")] == ["re-escalated", "told"]
    assert await written(app) == []
    assert (await found(app, published.id)).status is Status.FAILED
    (said,) = [entry for entry in logs if entry["event"] == "evidence not written"]
    assert (said["log_level"], said["hook"], said["what"]) == ("error", "on_dead_letter", "evidence")
    assert [entry.kind for entry in await app.trail(published.id)] == ["dead-lettered", "evidence-failed"]
    assert await hooks_that_failed(app, "on_dead_letter") == "1.0"


@pytest.mark.usefixtures("evidence")
async def test_what_a_hook_can_do_without_is_committed_when_it_works(app: Redrive) -> None:
    async def on_retry(retry: Retry, tx: Settling) -> None:
        for _ in range(2):
            async with tx.best_effort("evidence"):
                await write(retry, tx)

    @app.handler("settle", retry=SLOW, on_retry=on_retry)
    async def settle(payload: Any) -> None:
        raise ConnectionError("bank is away")

    await app.publish("settle")
    await app.worker().drain()

    assert len(await written(app)) == 2
    assert await app.attention(kinds=["hook"]) == []


@pytest.mark.req("A5", "A6")
async def test_a_store_that_cannot_be_written_is_waited_for_and_the_hook_is_not_left_out(sqlite_url: str) -> None:
    """However long it takes: a dead letter without its hook would be one that nobody hears of."""
    app = Redrive(sqlite_url)

    async def escalate(letter: DeadLetter, tx: Settling) -> None:
        await tx.execute("insert into dispute values ('re-escalated')")

    @app.handler("settle", on_dead_letter=escalate)
    async def settle(payload: Any) -> None:
        app.store.writer.connection.execute("pragma query_only=on")  # type: ignore[attr-defined]
        raise Rejected("no funds")

    async with app:
        async with app.transaction() as tx:
            await tx.execute("create table dispute (state text)")
        published = await app.publish("settle")
        with structlog.testing.capture_logs() as logs:
            working = asyncio.create_task(app.worker().drain())
            await until(lambda: [entry["event"] for entry in logs].count("outcome not written yet") > 4)
            app.store.writer.connection.execute("pragma query_only=off")  # type: ignore[attr-defined]
            await asyncio.wait_for(working, 30)

        assert (await found(app, published.id)).status is Status.FAILED
        async with app.transaction() as tx:
            assert len(await tx.fetch("select * from dispute")) == 1
        assert await app.attention(kinds=["hook"]) == []
        assert "hook failed" not in {entry["event"] for entry in logs}
