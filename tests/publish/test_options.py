"""What a publisher may say, and what is refused before anything is written."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest

from redrive import Priority, Redrive, RedriveError
from tests.stores.helpers import Hands, found

WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "an unknown option": ({"prioritee": 1}, "publish has no option prioritee: there are id, subject"),
    "a priority too low": ({"priority": 9}, "priority must be one of 0 (high), 1 (normal)"),
    "a negative priority": ({"priority": -1}, "priority must be one of"),
    "a priority in words": ({"priority": "high"}, "priority must be one of"),
    "a priority between two": ({"priority": 1.5}, "priority must be one of"),
    "a time without a zone": ({"due_at": datetime(2030, 1, 1)}, "due_at must know its time zone"),  # noqa: DTZ001
    "a day": ({"due_at": date(2030, 1, 1)}, "due_at must be a datetime"),
    "a time in words": ({"due_at": "tomorrow"}, "due_at must be a datetime"),
    "a time nobody will see": ({"due_at": datetime(9999, 1, 1, tzinfo=UTC)}, "due_at must lie between the years"),
    "a time before time": ({"due_at": datetime.min.replace(tzinfo=UTC)}, "due_at must lie between the years"),
    "a negative delay": ({"delay": -1}, "is not a duration"),
    "a delay in words": ({"delay": "soon"}, "is not a duration"),
    "an endless delay": ({"delay": float("inf")}, "is not a duration"),
    "a long subject": ({"subject": "x" * 513}, "subject has 513 characters, at most 512"),
    "a long retry key": ({"retry_key": "x" * 513}, "retry_key has 513 characters, at most 512"),
    "a long idempotency key": ({"idempotency_key": "x" * 513}, "idempotency_key has 513 characters, at most 512"),
    "a long correlation": ({"correlation_id": "x" * 256}, "correlation_id has 256 characters, at most 255"),
    "a long causation": ({"causation_id": "x" * 256}, "causation_id has 256 characters, at most 255"),
    "a long queue": ({"queue": "x" * 256}, "queue has 256 characters, at most 255"),
    "a long source": ({"source": "x" * 256}, "source has 256 characters, at most 255"),
    "a source that is no text": ({"source": 5}, "source must be a string, not int"),
    "a key that is no text": ({"retry_key": 5}, "retry_key must be a string, not int"),
    "a queue that is no text": ({"queue": None}, "queue must be a string, not NoneType"),
    "a generation in words": ({"generation": "blue"}, "generation must be a whole number"),
    "a negative generation": ({"generation": -1}, "generation must be a whole number"),
    "a generation too large": ({"generation": 2**63}, "generation must be a whole number"),
    "a header that is no text": ({"headers": {"a": 1}}, "headers.a must be a string, not int"),
    "a header without a name": ({"headers": {"": "x"}}, "headers have an empty name"),
    "headers that are no mapping": ({"headers": [("a", "b")]}, "headers must be a mapping"),
    "too many headers": ({"headers": {str(n): "x" for n in range(101)}}, "101 headers are given, at most 100"),
    "too long headers": ({"headers": {"a": "x" * 16_384}}, "at most 16,384"),
}


async def test_a_wrong_option_is_named_and_nothing_is_written(app: Redrive) -> None:
    for case, (options, said) in WRONG.items():
        with pytest.raises(RedriveError) as alone:
            await app.publish("t", 1, **options)
        with pytest.raises(RedriveError):
            await app.publish_many([("t", 1), ("t", 2, options), ("t", 3)])  # type: ignore[list-item]

        assert said in str(alone.value), case
        assert "\n" not in str(alone.value), case
        assert await app.events() == [], case


async def test_a_wrong_type_is_refused(app: Redrive) -> None:
    wrong: list[Any] = ["x" * 256, "a\0", "\ud800", 5, None]
    for type_ in wrong:
        with pytest.raises(RedriveError, match="type"):
            await app.publish(type_, 1)

    assert await app.events() == []


async def test_the_longest_values_are_stored_whole(app: Redrive) -> None:
    options: dict[str, Any] = {
        "subject": "ü" * 512, "idempotency_key": "ü" * 512, "retry_key": "ü" * 512, "correlation_id": "ü" * 255,
        "causation_id": "ü" * 255, "queue": "ü" * 255, "source": "ü" * 255, "generation": 2**63 - 1,
    }  # fmt: skip
    published = await app.publish("ü" * 255, 1, **options)

    event = await found(app, published.id)

    assert {name: getattr(event, name) for name in options} == options
    assert (event.type, event.target) == ("ü" * 255, "ü" * 255)


async def test_what_is_not_said_has_its_default(app: Redrive) -> None:
    published = await app.publish("t")

    event = await found(app, published.id)

    assert (event.payload, event.headers, event.subject, event.source) == (None, {}, None, "shop")
    assert (event.queue, event.priority, event.generation) == ("default", Priority.NORMAL, 0)
    assert event.idempotency_key == str(published.id)
    assert (event.retry_key, event.correlation_id, event.causation_id) == (None, None, None)
    assert event.due_at == event.created_at


async def test_an_id_may_be_given_as_a_uuid(app: Redrive) -> None:
    published = await app.publish("t", correlation_id=UUID(int=7), causation_id=UUID(int=8))

    event = await found(app, published.id)

    assert (event.correlation_id, event.causation_id) == (str(UUID(int=7)), str(UUID(int=8)))


async def test_a_due_time_of_another_zone_is_the_same_instant(app: Redrive) -> None:
    from zoneinfo import ZoneInfo

    noon = datetime(2040, 7, 1, 12, tzinfo=ZoneInfo("Europe/Vienna"))

    published = await app.publish("t", due_at=noon)

    assert (await found(app, published.id)).due_at == noon == datetime(2040, 7, 1, 10, tzinfo=UTC)


async def test_a_due_time_and_a_delay_add_up(app: Redrive) -> None:
    noon = datetime(2040, 7, 1, 12, tzinfo=UTC)

    published = await app.publish("t", due_at=noon, delay="1h")

    assert (await found(app, published.id)).due_at == noon + timedelta(hours=1)


async def test_the_latest_times_can_be_stored_and_read(app: Redrive) -> None:
    latest = datetime(9000, 12, 31, tzinfo=UTC)
    hands = await Hands.begin(app)

    published = await app.publish("t", due_at=latest, delay="36525d")

    assert (await found(app, published.id)).due_at == latest + timedelta(days=36_525)
    assert await hands.claim() == []
    assert (await hands.claims.next_due() or 0) > 0
    await hands.claims.close()


async def test_a_wrong_generation_is_refused_at_a_replay_too(app: Redrive) -> None:
    wrong: list[Any] = [-1, 2**63, "blue", True]
    hands = await Hands.begin(app)
    dead = await hands.dead_letter()
    before = await found(app, dead)

    for generation in wrong:
        with pytest.raises(RedriveError, match="generation must be a whole number"):
            await app.replay(dead, by="ann", reason="mended", generation=generation)

    assert await found(app, dead) == before
    await hands.claims.close()
