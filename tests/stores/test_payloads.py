"""A payload comes back exactly as it went in, the same on both stores; what would not is refused, the same on both."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from redrive import Limits, PayloadRefused, Redrive, RedriveError
from redrive.clock import VirtualClock
from redrive.store.base import HEADERS, PAYLOAD
from tests.stores.helpers import Hands, found

pytestmark = pytest.mark.promise("poison")

texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=20)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | texts,
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(texts, inner, max_size=5),
    max_leaves=20,
)


@settings(
    max_examples=60,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)  # fmt: skip
@given(batch=st.lists(values, min_size=1, max_size=20))
async def test_any_json_value_comes_back_exactly(batch: list[Any], app: Redrive, hands: Hands) -> None:
    published = await app.publish_many([("t", value) for value in batch])

    claimed = {str(row[0]): row[PAYLOAD] for row in await hands.claim(1000)}
    read = {event.id: event.payload for event in await app.events()}

    for each, value in zip(published, batch, strict=True):
        text = claimed[str(each.id)]
        assert same(json.loads(text), value)
        if each.id in read:  # a page of them
            assert same(read[each.id], value)


def same(one: Any, two: Any) -> bool:
    """Equal in type too: 1 is not 1.0, and 0.0 is not -0.0."""
    return repr(one) == repr(two)


EDGES = {
    "big": 2**13_000,
    "just above a double": 2**53 + 1,
    "tiny": 5e-324,
    "huge": 1.7976931348623157e308,
    "minus nothing": -0.0,
    "tenth": 0.1,
    "astral": "𝔘𐍈🦉\U0010ffff",
    "controls": "\x01\x1f\x7f\u0085\u2028\u2029\ufeff\uffff",
    "escapes": "\\u0000 \\ \" ' %s %% :name $1 {x} ; --",
    "keys": {"": 1, " ": 2, "a.b": 3, "constructor": 4, "é": 5, "e\u0301": 6},
    "duplicates by case": {"a": 1, "A": 2},
    "order": {"z": 1, "a": 2, "m": 3},
    "empty": [[], {}, "", [[]], {"": {}}],
    "deep": json.loads("[" * 60 + "]" * 60),
}


async def test_an_edge_of_json_comes_back_exactly(app: Redrive, hands: Hands) -> None:
    for edge, value in EDGES.items():
        published = await app.publish("t", {"value": value})

        (row,) = await hands.claim()
        event = await found(app, published.id)

        assert same(json.loads(row[PAYLOAD]), {"value": value}), edge
        assert same(event.payload, {"value": value}), edge


async def test_headers_and_names_come_back_exactly(app: Redrive, hands: Hands) -> None:
    odd = "ü🦉\n'\"\\ %s :name $1"
    published = await app.publish(
        "t", None, headers={odd: odd}, subject=odd, idempotency_key=odd, retry_key=odd, correlation_id=odd,
        causation_id=odd, source=odd.replace("\n", " "),
    )  # fmt: skip

    event = await found(app, published.id)
    (row,) = await hands.claim()

    assert (event.headers, json.loads(row[HEADERS])) == ({odd: odd}, {odd: odd})
    assert (event.subject, event.idempotency_key, event.retry_key) == (odd,) * 3
    assert event.source == odd.replace("\n", " ")
    assert (event.correlation_id, event.causation_id) == (odd, odd)


def nested(depth: int) -> Any:
    return json.loads("[" * depth + "]" * depth)


REFUSED: dict[str, tuple[Any, dict[str, Any]]] = {
    "not a number": ({"a": [1, math.nan]}, {}),
    "infinite": ({"a": -math.inf}, {}),
    "a surrogate": ({"a": "\ud800"}, {}),
    "a surrogate as a key": ({"\udfff": 1}, {}),
    "a NUL": ({"a": "x\0y"}, {}),
    "a NUL in a key": ({"a\0": 1}, {}),
    "too deep": ({"a": nested(64)}, {}),
    "too large": ("x" * 1_048_576, {}),
    "too large in bytes": ("ü" * 600_000, {}),
    "no JSON": ({"a": object()}, {}),
    "a key that is no text": ({1: 2}, {}),
    "too many digits": ({"a": 10**5_000}, {}),
    "a NUL in the subject": (1, {"subject": "\0"}),
    "a surrogate in the subject": (1, {"subject": "\ud800"}),
    "a NUL in the retry key": (1, {"retry_key": "a\0"}),
    "a NUL in the source": (1, {"source": "a\0"}),
    "a NUL in a header": (1, {"headers": {"a": "\0"}}),
    "a surrogate in the queue": (1, {"queue": "\ud800"}),
}


async def test_what_cannot_be_stored_is_refused_before_anything_is_written(postgres_url: str, sqlite_url: str) -> None:
    refusals: list[dict[str, tuple[str, str, str | None]]] = []

    for url in (sqlite_url, postgres_url):
        refusals.append({})
        async with Redrive(url, clock=VirtualClock(), migrate=True) as app:
            for case, (payload, options) in REFUSED.items():
                with pytest.raises(PayloadRefused) as alone:
                    await app.publish("t", payload, **options)
                with pytest.raises(PayloadRefused):
                    await app.publish_many([("t", 1), ("t", payload, options), ("t", 2)])  # type: ignore[list-item]
                refusals[-1][case] = (str(alone.value), alone.value.field, alone.value.limit)
                assert alone.value.field, case
                assert await app.events() == [], case

    assert refusals[0] == refusals[1]


async def test_a_limit_is_configurable_and_named(app: Redrive, store_url: str) -> None:
    async with Redrive(store_url, limits=Limits(max_bytes=10, max_depth=2)) as small:
        await small.publish("t", "12345678")
        with pytest.raises(PayloadRefused, match="11 bytes as JSON, at most 10") as large:
            await small.publish("t", "123456789")
        with pytest.raises(PayloadRefused, match="deeper than 2 levels") as deep:
            await small.publish("t", [[[]]])

    assert (large.value.limit, deep.value.limit) == ("max_bytes=10", "max_depth=2")
    assert len(await app.events()) == 1


async def test_a_megabyte_goes_through(app: Redrive, hands: Hands) -> None:
    payload = "ü" * ((1_048_576 - 2) // 2)

    published = await app.publish("t", payload)
    (row,) = await hands.claim()

    assert len(row[PAYLOAD].encode()) == 1_048_576
    assert (await found(app, published.id)).payload == payload


async def test_an_error_with_odd_characters_is_stored_as_it_is(app: Redrive, hands: Hands) -> None:
    odd = "ü🦉\n'\"\\ %s :name $1 {x}"

    dead = await hands.dead_letter(error=odd)
    await app.replay(dead, by=odd, reason=odd)
    event = await found(app, dead)

    assert event.failure_history[0].last_error == odd
    assert (event.failure_history[0].replayed_by, event.failure_history[0].reason) == (odd, odd)


async def test_a_name_or_reason_that_cannot_be_stored_is_refused(app: Redrive, hands: Hands) -> None:
    dead = await hands.dead_letter()
    before = await found(app, dead)

    for odd in ("a\0b", "\ud800"):
        with pytest.raises(RedriveError, match="by"):
            await app.replay(dead, by=odd, reason="why")
        with pytest.raises(RedriveError, match="reason"):
            await app.replay(dead, by="ann", reason=odd)

    assert await found(app, dead) == before
