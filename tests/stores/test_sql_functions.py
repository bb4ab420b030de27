"""What people with nothing but psql can do."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from datetime import timedelta
from typing import Any
from uuid import UUID

import psycopg
import pytest

from redrive import Redrive, Status
from tests.stores.helpers import Hands, found, kinds


@pytest.fixture
async def app(postgres_url: str) -> AsyncIterator[Redrive]:
    async with Redrive(postgres_url, migrate=True) as app:
        yield app


@pytest.fixture
def psql(app: Redrive, postgres_url: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        yield connection


def only(cursor: psycopg.Cursor[Any]) -> Any:
    ((value,),) = cursor.fetchall()
    return value


async def test_an_event_can_be_published_from_sql(app: Redrive, psql: psycopg.Connection[Any]) -> None:
    event_id = only(psql.execute("""select redrive.publish('order.placed', '{"n": [1.10, 9007199254740993]}')"""))

    event = await found(app, event_id)
    hands = await Hands.begin(app)
    claimed = await hands.claim()

    assert isinstance(event_id, UUID)
    assert event_id.version == 7
    assert (event.type, event.target, event.source) == ("order.placed", "order.placed", "sql-direct")
    assert event.payload == {"n": [1.1, 9007199254740993]}
    assert (event.idempotency_key, event.status, event.queue) == (str(event_id), Status.PENDING, "default")
    assert len(claimed) == 1
    await hands.claims.close()


async def test_everything_can_be_said_from_sql(app: Redrive, psql: psycopg.Connection[Any]) -> None:
    event_id = only(
        psql.execute("""select redrive.publish('t', '1', p_target => 'x', p_subject => 's', p_source => 'cron',
            p_retry_key => 'r', p_idempotency_key => 'i', p_correlation_id => 'c', p_causation_id => 'e',
            p_queue => 'slow', p_priority => 2::smallint, p_delay => '1 hour', p_headers => '{"a": "b"}',
            p_generation => 4)""")
    )

    event = await found(app, event_id)

    assert (event.target, event.subject, event.source, event.retry_key) == ("x", "s", "cron", "r")
    assert (event.idempotency_key, event.correlation_id, event.causation_id) == ("i", "c", "e")
    assert (event.queue, event.priority, event.headers, event.generation) == ("slow", 2, {"a": "b"}, 4)
    assert event.due_at - event.created_at == timedelta(hours=1)


@pytest.mark.req("A3")
async def test_sql_and_python_share_the_live_retry_key(app: Redrive, psql: psycopg.Connection[Any]) -> None:
    from_python = await app.publish("t", retry_key="r")
    from_sql = only(psql.execute("select redrive.publish('t', '1', p_retry_key => 'r')"))
    await app.cancel(from_python.id, by="ann", reason="wrong")
    anew = only(psql.execute("select redrive.publish('t', '1', p_retry_key => 'r')"))
    again = await app.publish("t", retry_key="r")

    assert from_sql == from_python.id
    assert anew != from_python.id
    assert (again.id, again.created) == (anew, False)


async def test_a_publish_from_sql_stands_and_falls_with_its_transaction(
    app: Redrive, psql: psycopg.Connection[Any]
) -> None:
    with psql.transaction(force_rollback=True):
        psql.execute("select redrive.publish('t', '1')")

    assert await app.events() == []


@pytest.mark.req("A7")
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("'t', '1', p_priority => 9::smallint", "priority must be one of 0 (high), 1 (normal), 2 (low), 3"),
        ("'t', '1', p_generation => -1", "generation must be a whole number from 0 to 9223372036854775807"),
        ("'t', null", "payload is NULL"),
        ("'t', repeat('9', 5000)::json", "payload is an integer of more than 4,200 digits; send a string"),
        ("'t', ('[' || repeat('9', 5000) || ']')::json", "payload is an integer of more than 4,200 digits"),
        ("'t', (repeat('[', 3000) || repeat(']', 3000))::json", "payload is nested deeper than 64 levels; flatten it"),
        ("'t', (repeat('[', 65) || repeat(']', 65))::json", "payload is nested deeper than 64 levels; flatten it"),
        ("'t', to_json(repeat('x', 1048575))", "payload takes 1,048,577 bytes as JSON, at most 1,048,576 are allowed"),
        ("""'t', '{"a": "\\u0000"}'""", "payload contains a NUL character, which no database stores as text"),
        ("""'t', '["\\ud800"]'""", "payload contains a lone surrogate, which is not Unicode text; decode it properly"),
        ("""'t', '{"a": 1, "b": {"c": 1, "c": 2}}'""", "payload has a key twice in one object; send it once"),
        ("'t', '1e400'", "payload has the number 1e400, which a double does not hold exactly; send a string"),
        ("'t', '[9007199254740993.0]'", "payload has the number 9007199254740993.0, which a double does not hold"),
        ("'', '1'", "type is empty"),
        ("null, '1'", "type is empty"),
        ("E'a\\nb', '1'", "type contains a control character"),
        ("repeat('t', 256), '1'", "type has 256 characters, at most 255 are allowed"),
        ("'t', '1', p_queue => ''", "queue is empty"),
        ("'t', '1', p_target => E'\\x1b'", "target contains a control character"),
        ("'t', '1', p_source => repeat('s', 256)", "source has 256 characters, at most 255 are allowed"),
        ("'t', '1', p_retry_key => repeat('k', 513)", "retry_key has 513 characters, at most 512 are allowed"),
        ("'t', '1', p_ordering_key => repeat('k', 1000)", "ordering_key has 1,000 characters, at most 512 are allowed"),
        ("'t', '1', p_headers => '[1]'", "headers must be an object, not a array"),
        ("'t', '1', p_headers => '{\"a\": 1}'", "headers must be strings: headers.a is not"),
        ("'t', '1', p_headers => '{\"\": \"b\"}'", "headers have an empty name"),
        ("'t', '1', p_headers => '{\"a\": \"b\", \"a\": \"c\"}'", "headers has a key twice"),
        ("'t', '1', p_headers => json_build_object('a', repeat('x', 16384))", "headers takes 16,"),
        ("'t', '1', p_delay => '101 years'", "delay must be at most 100 years"),
    ],
)  # fmt: skip
async def test_sql_refuses_what_python_refuses(
    app: Redrive, psql: psycopg.Connection[Any], arguments: str, said: str
) -> None:
    with pytest.raises(psycopg.Error) as refused:
        psql.execute(f"select redrive.publish({arguments})")

    assert refused.value.sqlstate == "RD400"
    assert said in str(refused.value)
    assert await app.events() == []


@pytest.mark.req("A7")
async def test_what_sql_takes_comes_back_as_it_went(app: Redrive, psql: psycopg.Connection[Any]) -> None:
    taken = {
        '{"a": ["{", "}", ":\\"[", "\\\\"], "b:": {"a": 1}}': {"a": ["{", "}", ':"[', "\\"], "b:": {"a": 1}},
        "9" * 4_200: int("9" * 4_200),
        "[" * 64 + "]" * 64: None,
        "[0.1, 1e23, 0.10000000000000001, -2.5E-3, 12345678901234567890]": [
            0.1,
            1e23,
            0.1,
            -0.0025,
            12345678901234567890,
        ],
        '"\\ud83d\\ude00 1e400 9007199254740993.0"': "\U0001f600 1e400 9007199254740993.0",
    }
    for text, value in taken.items():
        event_id = only(psql.execute("select redrive.publish('t', %s::json)", (text,)))
        event = await found(app, event_id)
        assert event.unreadable is None
        assert value in (event.payload, None)


async def test_an_administrator_may_allow_larger_payloads(app: Redrive, psql: psycopg.Connection[Any]) -> None:
    psql.execute("set redrive.max_bytes = 2000000")
    psql.execute("set redrive.max_depth = 100")

    psql.execute("select redrive.publish('t', to_json(repeat('x', 1500000)))")
    psql.execute("select redrive.publish('t', (repeat('[', 90) || repeat(']', 90))::json)")

    assert len(await app.events()) == 2


async def test_ids_made_in_sql_are_of_this_moment_and_all_different(psql: psycopg.Connection[Any]) -> None:
    rows = psql.execute(
        "select redrive.uuid7(), (extract(epoch from clock_timestamp()) * 1000)::bigint from generate_series(1, 1000)"
    ).fetchall()

    assert len({made for made, _ in rows}) == 1000
    assert {made.version for made, _ in rows} == {7}
    assert all(made.variant == "specified in RFC 4122" for made, _ in rows)
    assert all(abs((made.int >> 80) - now) < 2_000 for made, now in rows)


async def test_an_event_can_be_cancelled_from_sql_with_the_same_trail(
    app: Redrive, psql: psycopg.Connection[Any]
) -> None:
    one, two = [(await app.publish("t", source="shop")).id for _ in range(2)]

    await app.cancel(one, by="ann", reason="wrong")
    psql.execute("select redrive.cancel(%s, 'ann', 'wrong')", (two,))

    events = [await found(app, each) for each in (one, two)]
    entries = [(await app.trail(each))[0] for each in (one, two)]
    assert {(e.status, e.cancelled_by, e.cancel_reason) for e in events} == {(Status.CANCELLED, "ann", "wrong")}
    assert {(e.kind, e.chain, e.source, e.actor, e.detail) for e in entries} == {
        ("cancelled", "operator", "shop", "ann", entries[0].detail)
    }
    assert entries[0].facts == {"reason": "wrong", "was": "pending"}
    assert (await app.verify_trail()).sound


async def test_a_cancel_from_sql_says_why_it_is_refused(app: Redrive, psql: psycopg.Connection[Any]) -> None:
    hands = await Hands.begin(app)
    dead = await hands.dead_letter()
    answers = []

    for event_id, by, reason in ((dead, "ann", "x"), (dead, " ", "x"), (dead, "ann", ""), (UUID(int=1), "ann", "x")):
        with pytest.raises(psycopg.Error) as error:
            psql.execute("select redrive.cancel(%s, %s, %s)", (event_id, by, reason))
        answers.append(error.value.sqlstate)

    assert answers == ["RD409", "RD400", "RD400", "RD404"]
    assert await kinds(app, dead) == ["dead-lettered"]
    await hands.claims.close()


async def test_the_view_of_dead_letters_shows_the_quarantine(app: Redrive, psql: psycopg.Connection[Any]) -> None:
    hands = await Hands.begin(app)
    dead = await hands.dead_letter("t", {"n": 1}, error="long " * 100, correlation_id="c", retry_key="r")
    hidden = await hands.dead_letter("t")
    await app.discard(hidden, by="ann", reason="noise")

    rows = psql.execute(
        "select id, target, error_class, length(error), attempts, correlation_id, retry_key, payload, failed_at"
        " from redrive.dead_letters"
    ).fetchall()

    (row,) = rows
    assert row[:8] == (dead, "t", "broken", 200, 1, "c", "r", {"n": 1})
    assert row[8] == (await found(app, dead)).ended_at
    await hands.claims.close()


async def test_a_publish_and_a_replay_from_sql_wake_whoever_listens(
    app: Redrive, psql: psycopg.Connection[Any], postgres_url: str
) -> None:
    hands = await Hands.begin(app)
    dead = await hands.dead_letter()
    with psycopg.connect(postgres_url, autocommit=True) as listener:
        listener.execute("listen redrive")

        psql.execute("select redrive.publish('t', '1', p_queue => 'slow')")
        psql.execute("select redrive.outbox_replay(%s, 0, 'ann')", (dead,))
        heard = [note.payload for note in listener.notifies(timeout=60, stop_after=2)]

    assert heard == ["slow", "default"]
    await hands.claims.close()
