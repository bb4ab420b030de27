"""`check_idempotent` tells handlers that may run twice from those that may not."""

from __future__ import annotations

from typing import Any

import pytest

from redrive import ConfigurationError, Context, Redrive, RetryPolicy, Status
from redrive.testing import Harness, check_idempotent

pytestmark = pytest.mark.promise("effect-once")


class World:
    """An outside that counts what is done to it."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.charged: dict[str, int] = {}

    async def charge(self, key: str) -> None:
        self.calls.append(key)
        self.charged[key] = self.charged.get(key, 0) + 1

    def clear(self) -> None:
        self.calls.clear()
        self.charged.clear()


@pytest.fixture
def app() -> Redrive:
    return Redrive("sqlite:///nowhere/never-opened.db", retry=RetryPolicy(max_attempts=2))


async def rows(app: Redrive) -> list[Any]:
    async with app.transaction() as tx:
        return await tx.fetch("select name from shipped order by 1")


def with_table(app: Redrive) -> None:
    @app.when_open
    async def make(tx: Any) -> None:
        await tx.execute("create table if not exists shipped (name text not null)")


async def test_an_effect_in_the_transaction_of_the_handler_is_had_once(app: Redrive) -> None:
    with_table(app)

    @app.handler("order.paid")
    async def ship(order: int, ctx: Context) -> None:
        async with ctx.transaction() as tx:
            await tx.execute("insert into shipped values (?)", str(order))

    found = await check_idempotent(app, "order.paid", 7, observe=lambda: rows(app))

    found.check()
    assert (found.is_idempotent, [tuple(row) for row in found.plain]) == (True, [("7",)])
    told = [trial.what for trial in found.trials]
    assert "it is published twice with one idempotency key" in told
    assert "the worker dies at the end of the handler" in told
    assert any(what.startswith("the worker dies after await 1 of ") for what in told)
    assert "is idempotent" in str(found)
    crashed = [trial for trial in found.trials if "await" in trial.what]
    assert any(trial.runs > 1 for trial in crashed)  # the crash was real: it ran again


async def test_an_effect_before_the_transaction_is_found_out(app: Redrive) -> None:
    with_table(app)
    world = World()

    @app.handler("order.paid")
    async def ship(order: int, ctx: Context) -> None:
        await world.charge(f"order-{order}")
        async with ctx.transaction() as tx:
            await tx.execute("insert into shipped values (?)", str(order))

    found = await check_idempotent(app, "order.paid", 7, observe=lambda: dict(world.charged), reset=world.clear)

    odd = [trial for trial in found.trials if not trial.is_same]
    assert [trial.seen for trial in odd] == [{"order-7": 2}] * len(odd)
    assert odd
    with pytest.raises(AssertionError, match=r"order\.paid is not idempotent.*One plain run leaves {'order-7': 1}"):
        found.check()


async def test_what_is_harmless_to_repeat_is_idempotent(app: Redrive) -> None:
    world = World()

    @app.handler("order.paid")
    async def ship(order: int) -> None:
        await world.charge(f"order-{order}")

    at_least = await check_idempotent(app, "order.paid", 7, observe=lambda: set(world.calls), reset=world.clear)
    once = await check_idempotent(app, "order.paid", 7, observe=lambda: list(world.calls), reset=world.clear)

    assert at_least.is_idempotent
    assert {trial.what for trial in once.trials if not trial.is_same} >= {
        "the worker dies at the end of the handler",
        "it fails at its end until it is a dead letter, and is replayed",
        "it is published twice with one idempotency key",
    }


async def test_a_plain_function_and_several_handlers_are_tried_each(app: Redrive) -> None:
    world = World()

    @app.handler("order.paid")
    def ship(order: int) -> None:
        world.calls.append(f"ship-{order}")

    @app.handler("order.paid", name="mail")
    async def mail(order: int, ctx: Context) -> None:
        async with ctx.transaction():
            pass
        world.calls.append(f"mail-{order}")

    found = await check_idempotent(app, "order.paid", 7, observe=lambda: sorted(world.calls), reset=world.clear)

    odd = [trial.what for trial in found.trials if not trial.is_same]
    assert "the worker dies at the end of the handler (order.paid)" in odd
    (lost,) = [trial for trial in found.trials if "(mail)" in trial.what and not trial.is_same]
    assert (lost.what, lost.seen) == ("the worker dies after await 4 of 4 (mail)", ["ship-7"])  # not mailed


async def test_the_order_of_others_can_make_a_difference(app: Redrive) -> None:
    state: dict[str, str] = {}

    @app.handler("order.paid")
    async def paid(order: int) -> None:
        state[str(order)] = "paid"

    @app.handler("order.cancelled")
    async def cancelled(order: int) -> None:
        state[str(order)] = "cancelled"

    found = await check_idempotent(
        app, "order.paid", 7, observe=lambda: dict(state), reset=state.clear, beside=[("order.cancelled", 7)]
    )

    assert [trial.what for trial in found.trials if not trial.is_same][-1] == "the others come first"


async def test_what_cannot_be_compared_is_refused(app: Redrive) -> None:
    @app.handler("order.paid")
    async def ship(order: int) -> None:
        raise ConnectionError("away")

    with pytest.raises(ConfigurationError, match="not delivered even without trouble"):
        await check_idempotent(app, "order.paid", 7, observe=lambda: None)
    with pytest.raises(ConfigurationError, match=r"nobody handles order\.lost"):
        await check_idempotent(app, "order.lost", 7, observe=lambda: None)


async def test_a_crash_leaves_nothing_written_and_the_event_runs_again(app: Redrive) -> None:
    tried: list[int] = []

    @app.handler("order.paid")
    async def ship(order: int, ctx: Context) -> None:
        tried.append(ctx.attempt)

    async with Harness(app) as h:
        h.crash_next(target="order.paid")
        await app.publish("order.paid", 7)
        ran = await h.run_due()
        (event,) = await h.events()

    assert [each.outcome for each in ran] == ["worker lost", "delivered"]
    assert (event.status, event.lost_count, event.last_error, len(tried)) == (Status.DELIVERED, 1, None, 2)
    with pytest.raises(ConfigurationError, match="counts from 1"):
        h.crash_next(after_awaits=0)
