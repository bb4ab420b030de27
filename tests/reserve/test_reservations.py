"""Reservations: one winner at write time, and a late holder writes nothing."""

from __future__ import annotations

import asyncio
import json
import pickle
import sqlite3
from contextlib import AsyncExitStack
from typing import Any

import aiosqlite
import asyncpg
import psycopg
import pytest
from sqlalchemy.ext.asyncio import create_async_engine

from redrive import ConfigurationError, Context, PayloadRefused, Redrive, Refused, ReservationLost, Taken
from redrive.clock import VirtualClock
from tests.reserve.conftest import expired, run_out
from tests.stores.helpers import is_postgres, output_of, start_python
from tests.waiting import until

pytestmark = pytest.mark.promise("one-winner")

CONTEND = """
import asyncio, json, sys
from redrive import Redrive, Taken

async def main(url, owner, resources, rounds):
    won, taken = [], 0
    async with Redrive(url) as app:
        print("ready", flush=True)
        sys.stdin.readline()

        async def contend(first):
            nonlocal taken
            for n in range(rounds):
                try:
                    got = await app.reservations.take(f"seat/{(first + n) % resources}", owner=owner, ttl="1h")
                except Taken:
                    taken += 1
                else:
                    won.append((got.resource, got.token))

        await asyncio.gather(*(contend(first * 5) for first in range(25)))
    print(json.dumps({"won": won, "taken": taken}))

asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])))
"""


# --- taking ---


@pytest.mark.req("W8")
async def test_one_wins_and_the_others_hear_who_holds_it(app: Redrive) -> None:
    results = await asyncio.gather(
        *(app.reservations.take("seat/1", owner=f"guest-{n}", ttl="1h") for n in range(20)), return_exceptions=True
    )

    (winner,) = [each for each in results if not isinstance(each, BaseException)]
    losers = [each for each in results if isinstance(each, Taken)]
    assert len(losers) == 19
    assert winner.token == 1
    with pytest.raises(Taken, match=rf"held by {winner.owner} until .* wait=") as told:
        await app.reservations.take("seat/1", owner="last")
    assert (told.value.owner, told.value.until) == (winner.owner, winner.until)


@pytest.mark.req("W8")
def test_ten_thousand_contenders_for_a_hundred_resources_make_a_hundred_winners(store_url: str) -> None:
    asyncio.run(migrated(store_url))
    processes = [start_python(CONTEND, store_url, f"p{n}", "100", "100") for n in range(4)]
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    for process in processes:  # all at once
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()

    results = [json.loads(output_of(process)) for process in processes]

    won = [tuple(each) for result in results for each in result["won"]]
    assert sorted(won) == sorted((f"seat/{n}", 1) for n in range(100))
    assert sum(result["taken"] for result in results) == 10_000 - 100


async def migrated(url: str) -> None:
    async with Redrive(url, migrate=True):
        pass


@pytest.mark.req("W8")
async def test_tokens_grow_and_are_never_given_twice(app: Redrive) -> None:
    first = await app.reservations.take("seat/1", owner="a")
    await first.release()
    second = await app.reservations.take("seat/1", owner="b", ttl="0.1s")
    third = await app.reservations.take("seat/1", owner="c", wait="10s")

    assert (first.token, second.token, third.token) == (1, 2, 3)
    assert not first.is_held


@pytest.mark.req("W8")
async def test_many_who_want_what_has_run_out_make_one_winner(app: Redrive) -> None:
    await expired(app)

    results = await asyncio.gather(
        *(app.reservations.take("seat/1", owner=f"guest-{n}", ttl="1h") for n in range(20)), return_exceptions=True
    )

    (winner,) = [each for each in results if not isinstance(each, BaseException)]
    assert winner.token == 2
    assert sum(isinstance(each, Taken) for each in results) == 19


async def test_waiting_ends_when_it_is_released(app: Redrive) -> None:
    held = await app.reservations.take("seat/1", owner="a", ttl="1h")
    waiting = asyncio.create_task(app.reservations.take("seat/1", owner="b", wait="20s"))
    with pytest.raises(Taken):
        await app.reservations.take("seat/1", owner="c", wait="0.2s")

    await held.release()

    assert (await waiting).token == 2


async def test_waiting_by_a_clock_that_stands_still_ends(store_url: str) -> None:
    async with Redrive(store_url, clock=VirtualClock(), migrate=True) as app:
        await app.reservations.take("seat/1", owner="a", ttl="1h")
        with pytest.raises(Taken):
            await app.reservations.take("seat/1", owner="b", wait="30s")


async def test_facts_are_kept_and_shown(app: Redrive) -> None:
    await app.reservations.take("seat/1", owner="a", facts={"order": 7, "name": "Zoë"})

    (held,) = await app.reservations.ls()
    assert held.facts == {"order": 7, "name": "Zoë"}
    assert json.loads(json.dumps(held.to_json()))["facts"] == {"order": 7, "name": "Zoë"}


# --- holding ---


async def test_renewing_keeps_it_and_moves_its_end(app: Redrive) -> None:
    held = await app.reservations.take("seat/1", owner="a", ttl="10s")
    before = held.until

    await held.renew("1h")

    standing = await app.reservations.get("seat/1")
    assert standing is not None
    assert standing.until == held.until > before
    assert standing.renewed_at > standing.taken_at


@pytest.mark.req("W8")
async def test_what_has_run_out_can_be_neither_renewed_nor_released(app: Redrive) -> None:
    late = await expired(app)

    with pytest.raises(ReservationLost, match=r"ran out at .* renew it in time"):
        await late.renew("1h")
    with pytest.raises(ReservationLost, match="ran out at"):
        await late.release()


@pytest.mark.req("W8")
async def test_who_was_taken_over_from_can_do_nothing_to_the_next_holder(app: Redrive) -> None:
    late = await expired(app)
    now = await app.reservations.take("seat/1", owner="next", ttl="1h")

    with pytest.raises(ReservationLost, match="taken over with token 2 by next"):
        await late.renew("1h")
    with pytest.raises(ReservationLost, match="token 1 may write nothing more"):
        await late.release()

    standing = await app.reservations.get("seat/1")
    assert standing is not None
    assert (standing.token, standing.until, standing.is_held) == (now.token, now.until, True)


async def test_a_token_of_another_reservation_is_refused_and_changes_nothing(app: Redrive) -> None:
    for n in range(3):
        await (await app.reservations.take("seat/1", owner=f"g{n}")).release()
    held = await app.reservations.take("seat/2", owner="a", ttl="1h")

    foreign = app.reservations.by_token("seat/2", 4)
    with pytest.raises(ReservationLost, match="token 4 is not one of 'seat/2', whose latest is 1"):
        await foreign.renew("1h")
    with pytest.raises(ReservationLost, match="nobody ever reserved 'seat/3'"):
        await app.reservations.by_token("seat/3", 1).release()

    standing = await app.reservations.get("seat/2")
    assert standing is not None
    assert standing.until == held.until


async def test_a_token_can_travel_to_another_process(app: Redrive) -> None:
    held = await app.reservations.take("seat/1", owner="a", ttl="10s")

    async with Redrive(app.url) as other:
        elsewhere = other.reservations.by_token(held.resource, held.token)
        await elsewhere.renew("1h")
        await elsewhere.release()

    assert await app.reservations.ls() == []


# --- guarding your own writes ---


async def connections(stack: AsyncExitStack, url: str) -> list[Any]:
    """Open connections of several libraries."""
    bare: Any
    spoken: Any
    if is_postgres(url):
        bare = await asyncpg.connect(url)
        stack.push_async_callback(bare.close)
        spoken = await psycopg.AsyncConnection.connect(url)
        stack.push_async_callback(spoken.close)
        engine = create_async_engine(url.replace("postgresql://", "postgresql+psycopg://"))
    else:
        path = url.removeprefix("sqlite:///")
        bare = await aiosqlite.connect(path)
        stack.push_async_callback(bare.close)
        spoken = sqlite3.connect(path, check_same_thread=False)
        stack.callback(spoken.close)
        engine = create_async_engine(f"sqlite+aiosqlite:///{path}")
    stack.push_async_callback(engine.dispose)
    return [bare, spoken, await stack.enter_async_context(engine.connect())]


async def ended(connection: Any) -> None:
    """End the transaction of a connection."""
    if hasattr(connection, "rollback"):
        answer = connection.rollback()
        if answer is not None:
            await answer


@pytest.mark.req("W8")
async def test_a_guard_passes_the_holder_and_refuses_everybody_else_on_any_connection(app: Redrive) -> None:
    held = await app.reservations.take("seat/1", owner="a", ttl="1h")
    late = await expired(app, "seat/2")
    over = await expired(app, "seat/3")
    await app.reservations.take("seat/3", owner="next", ttl="1h")
    given = await app.reservations.take("seat/4", owner="a")
    await given.release()

    async with AsyncExitStack() as stack:
        for connection in await connections(stack, app.url):
            await held.guard(connection)
            for lost, said in ((late, "ran out"), (over, "taken over"), (given, "was released")):
                with pytest.raises(ReservationLost, match=said):
                    await lost.guard(connection)
            with pytest.raises(ReservationLost, match="is not one of"):
                await app.reservations.by_token("seat/1", 9).guard(connection)
            await ended(connection)


@pytest.mark.req("W8")
def test_a_guard_works_without_an_event_loop(store_url: str) -> None:
    app = Redrive(store_url, migrate=True)
    held = app.reservations.take_sync("seat/1", owner="a", ttl="1h")
    connection: Any = (
        psycopg.connect(store_url) if is_postgres(store_url) else sqlite3.connect(store_url.removeprefix("sqlite:///"))
    )
    try:
        held.guard_sync(connection)
        connection.rollback()
        held.renew_sync("2h")
        held.release_sync()
        with pytest.raises(ReservationLost, match="was released"):
            held.guard_sync(connection)
        connection.rollback()
        taken = app.reservations.take_in_sync(connection, "seat/1", owner="b")
        connection.commit()
        with pytest.raises(Taken, match="held by b"):
            app.reservations.take_in_sync(connection, "seat/1", owner="c")
    finally:
        connection.close()
        asyncio.run(app.close())

    assert taken.token == 2


GUARD = {
    "postgres": "insert into sold (seat) select 'seat/1' where redrive.guard('seat/1', {token})",
    "sqlite": "insert into redrive_guard (resource, token) values ('seat/1', {token})",
}


async def sold(app: Redrive, token: object, resource: str = "seat/1") -> str:
    """Write under the guard of a token, in SQL alone; return what the database said."""
    statement = GUARD[app.store.name].format(token=token).replace("seat/1", resource)
    try:
        async with app.store.transaction() as tx:
            await tx.execute("create table if not exists sold (seat text)")
            await tx.execute(statement)
            if app.store.name == "sqlite":
                await tx.execute("insert into sold (seat) values (?)", resource)
    except sqlite3.IntegrityError as error:
        return str(error)
    except asyncpg.PostgresError as error:
        return f"{error.sqlstate} {error}"
    return ""


@pytest.mark.req("W8")
async def test_a_guard_in_sql_refuses_a_late_holder_and_its_write(app: Redrive) -> None:
    late = await app.reservations.take("seat/1", owner="late", ttl="2s")
    assert await sold(app, late.token) == ""
    assert "is not one of" in await sold(app, 7)
    assert "is not one of" in await sold(app, "null")
    assert "nobody ever reserved" in await sold(app, 1, "seat/9")
    other = await app.reservations.take("seat/2", owner="a")
    await other.release()
    assert "was released" in await sold(app, 1, "seat/2")

    taken = await app.reservations.take("seat/1", owner="next", wait="10s", ttl="0.1s")
    assert "taken over" in await sold(app, late.token)
    await run_out(app, "seat/1")
    said = await sold(app, taken.token)
    assert ("has run out" if app.store.name == "sqlite" else "RD409 'seat/1' ran out at") in said

    async with app.store.transaction() as tx:
        rows = await tx.fetch("select count(*) from sold where seat <> 'seat/1'")
    assert rows[0][0] == 0


async def test_a_guard_on_sqlite_goes_by_the_files_time_when_the_clock_was_set_back(sqlite_url: str) -> None:
    async with Redrive(sqlite_url) as app:
        held = await app.reservations.take("seat/1", owner="a", ttl="1h")
        assert await sold(app, held.token) == ""
        async with app.store.transaction() as tx:  # another process, whose clock is two hours ahead, has written here
            await tx.execute("update redrive_clock set highest = highest + 7200000000")

        assert "has run out" in await sold(app, held.token)
        with pytest.raises(ReservationLost, match="ran out"):
            await held.renew("1h")


@pytest.mark.req("W8")
async def test_while_a_guarded_transaction_is_open_nobody_can_take_over(postgres_url: str) -> None:
    async with Redrive(postgres_url, migrate=True) as app:
        held = await app.reservations.take("seat/1", owner="slow", ttl="0.5s")
        with psycopg.connect(postgres_url) as connection:
            connection.execute("select redrive.guard('seat/1', %s)", (held.token,))
            await held.renew("0.2s")  # its holder can renew meanwhile
            await run_out(app, "seat/1")
            with pytest.raises(Taken, match="still writing"):
                await app.reservations.take("seat/1", owner="next")
            connection.commit()

        assert (await app.reservations.take("seat/1", owner="next")).token == 2


@pytest.mark.req("W8")
async def test_on_sqlite_a_take_waits_for_a_guarded_transaction(sqlite_url: str) -> None:
    async with Redrive(sqlite_url) as app:
        held = await app.reservations.take("seat/1", owner="slow", ttl="0.3s")
        connection = sqlite3.connect(sqlite_url.removeprefix("sqlite:///"))
        try:
            connection.execute("begin")
            connection.execute("insert into redrive_guard (resource, token) values ('seat/1', ?)", (held.token,))
            waiting = asyncio.create_task(app.reservations.take("seat/1", owner="next", wait="20s"))
            await run_out(app, "seat/1")
            await asyncio.sleep(0.1)
            assert not waiting.done()
            connection.commit()
        finally:
            connection.close()

        assert (await waiting).token == 2


# --- in your own transaction ---


@pytest.mark.req("W8")
async def test_a_take_stands_or_falls_with_the_callers_transaction(app: Redrive) -> None:
    with pytest.raises(ZeroDivisionError):
        async with app.store.transaction() as tx:
            await app.reservations.take_in(tx.connection, "seat/1", owner="a")
            raise ZeroDivisionError
    assert await app.reservations.get("seat/1") is None

    async with app.store.transaction() as tx:
        won = await app.reservations.take_in(tx.connection, "seat/1", owner="b", ttl="1h", facts=[1])
        with pytest.raises(Taken, match="held by b"):
            await app.reservations.take_in(tx.connection, "seat/1", owner="c")

    standing = await app.reservations.get("seat/1")
    assert standing is not None
    assert (standing.token, standing.owner, standing.facts, won.until) == (1, "b", [1], standing.until)


async def test_two_transactions_that_take_the_same_make_one_winner(postgres_url: str) -> None:
    async with Redrive(postgres_url, migrate=True) as app:
        first, second = await asyncpg.connect(postgres_url), await asyncpg.connect(postgres_url)
        try:
            begun = first.transaction()
            await begun.start()
            await app.reservations.take_in(first, "seat/1", owner="first")
            waiting = asyncio.create_task(app.reservations.take_in(second, "seat/1", owner="second"))

            async def waits() -> bool:
                query = "select count(*) from pg_stat_activity where pid = $1 and wait_event_type = 'Lock'"
                return bool(await first.fetchval(query, second.get_server_pid()))

            await until(waits)  # the other may still be rolled back
            await begun.commit()

            with pytest.raises(Taken, match="held by first"):
                await waiting
        finally:
            await first.close()
            await second.close()


async def test_a_handler_takes_in_its_transaction(app: Redrive) -> None:
    @app.handler("order.placed")
    async def place(order: dict[str, Any], ctx: Context) -> None:
        async with ctx.transaction() as tx:
            won = await app.reservations.take_in(tx.connection, "seat/1", owner=str(order["n"]), ttl="1h")
            await won.guard(tx.connection)
            if order["n"] == 1:
                raise Refused("after all not")

    for n in (1, 2):
        await app.publish("order.placed", {"n": n}, deadline="1h")
        await app.worker().drain()

    standing = await app.reservations.get("seat/1")
    assert standing is not None
    assert (standing.owner, standing.token) == ("2", 1)


# --- people ---


async def test_an_operator_takes_it_away_and_the_trail_knows(app: Redrive) -> None:
    held = await app.reservations.take("seat/1", owner="a", ttl="1h")

    await app.reservations.release("seat/1", by="ann", reason="its machine is gone")

    with pytest.raises(ReservationLost, match="was released"):
        await held.renew("1h")
    with pytest.raises(Refused, match="nobody holds"):
        await app.reservations.release("seat/1", by="ann", reason="again")
    entries = [each async for each in app.store.trail() if each.kind == "reservation-released"]
    assert [(each.actor, each.facts) for each in entries] == [
        ("ann", {"reason": "its machine is gone", "resource": "seat/1", "owner": "a", "token": 1})
    ]


async def test_the_list_shows_what_is_held_page_by_page(app: Redrive) -> None:
    for n in range(5):
        await app.reservations.take(f"seat/{n}", owner="a", ttl="1h")
    await app.reservations.release("seat/2", by="ann", reason="test")

    held = await app.reservations.ls(limit=2)
    rest = await app.reservations.ls(after=held[-1].resource)
    everything = await app.reservations.ls(everything=True)

    assert [each.resource for each in held + rest] == ["seat/0", "seat/1", "seat/3", "seat/4"]
    assert len(everything) == 5


@pytest.mark.parametrize(
    ("how", "error"),
    [
        ({"resource": ""}, ConfigurationError),
        ({"resource": "x" * 600}, PayloadRefused),
        ({"owner": " "}, ConfigurationError),
        ({"ttl": "soon"}, ConfigurationError),
        ({"ttl": 0}, ConfigurationError),
        ({"ttl": "1ms"}, ConfigurationError),
        ({"wait": -1}, ConfigurationError),
        ({"facts": {"x": float("nan")}}, PayloadRefused),
    ],
)
async def test_what_cannot_work_is_refused(sqlite_url: str, how: dict[str, Any], error: type[Exception]) -> None:
    async with Redrive(sqlite_url) as app:
        with pytest.raises(error):
            await app.reservations.take(**{"resource": "seat/1", "owner": "a", **how})
        assert await app.reservations.ls(everything=True) == []


def test_the_errors_survive_pickling() -> None:
    error = pickle.loads(pickle.dumps(Taken("held", resource="seat/1", owner="a")))
    assert (str(error), error.owner) == ("held", "a")
