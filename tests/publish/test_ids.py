"""The publisher may choose the id of an event: it can then stand in the payload, too."""

from __future__ import annotations

import pytest

from redrive import ConfigurationError, Redrive


async def test_an_event_has_the_id_that_its_publisher_chose(store_url: str) -> None:
    async with Redrive(store_url, migrate=True) as app:
        new = app.clock.new_id()

        published = await app.publish("order.paid", {"event_id": str(new)}, id=new)
        as_text = await app.publish("order.paid", id=str(app.clock.new_id()))

        event = await app.event(new)
        assert event is not None
        assert (published.id, event.payload, event.idempotency_key) == (new, {"event_id": str(new)}, str(new))
        assert as_text.created


async def test_with_several_targets_the_first_row_has_the_id(store_url: str) -> None:
    async with Redrive(store_url, migrate=True) as app:
        app.route("order.paid", "billing", "stock")
        new = app.clock.new_id()

        await app.publish("order.paid", id=new)

        found = {each.target: each for each in await app.events()}
        assert found["billing"].id == new != found["stock"].id
        assert found["stock"].correlation_id == str(new)


async def test_a_second_event_with_the_same_id_is_not_stored(store_url: str) -> None:
    async with Redrive(store_url, migrate=True) as app:
        new = app.clock.new_id()
        await app.publish("order.paid", {"n": 1}, id=new)

        with pytest.raises(Exception, match=r"(?i)unique"):
            await app.publish("order.paid", {"n": 2}, id=new)

        assert [each.payload for each in await app.events()] == [{"n": 1}]


@pytest.mark.parametrize("id_", ["7", 7, object()])
def test_an_id_that_is_no_uuid_is_refused(id_: object) -> None:
    with pytest.raises(ConfigurationError, match="id takes a UUID"):
        Redrive("sqlite:///:memory:").new_events("order.paid", id=id_)  # type: ignore[arg-type]


def test_a_schedule_has_no_id_for_its_events() -> None:
    app = Redrive("sqlite:///:memory:")

    with pytest.raises(ConfigurationError, match="id belongs to one event"):
        app.schedules.add("nightly", "report.due", every="1h", id=app.clock.new_id())
