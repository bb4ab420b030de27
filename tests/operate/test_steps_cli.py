"""Steps on the command line: seen with their event, resumed or forgotten by a replay."""

from __future__ import annotations

import pytest

from redrive import Context, Redrive, RetryPolicy
from tests.operate.helpers import in_app, read, redrive


@pytest.fixture
def dead(store_url: str) -> str:
    """Let an event take two steps and become a dead letter that is not undone."""

    async def work(app: Redrive) -> str:
        @app.compensation()
        async def refund(payment: str) -> None: ...

        async def charge() -> str:
            return "payment-7"

        @app.handler("order.paid", retry=RetryPolicy(max_attempts=1))
        async def ship(order: int, ctx: Context) -> None:
            await ctx.step("charge", charge, compensate=refund)
            await ctx.step("mail", lambda: None)
            raise ValueError("no")

        published = await app.publish("order.paid", 7)
        await app.worker().drain()
        return str(published.id)

    return in_app(store_url, work)


@pytest.mark.req("B10")
def test_an_event_is_shown_with_its_steps(store_url: str, dead: str) -> None:
    drawn = redrive("events", "show", dead, "-u", store_url).out
    shown = redrive("dlq", "show", dead, "-o", "json", "-u", store_url).json

    lines = [" ".join(line.split()) for line in drawn.splitlines()]
    assert "STEP STATE WHEN UNDONE BY RESULT" in lines
    assert any(line.startswith("charge done") and line.endswith('refund "payment-7"') for line in lines)
    assert any(line.startswith("mail done") and line.endswith("null") for line in lines)
    assert [(step["name"], step["state"], step["result"], step["compensation"]) for step in shown["steps"]] == [
        ("charge", "done", "payment-7", "compensate:refund"),
        ("mail", "done", None, None),
    ]
    assert shown["compensation"] is None


@pytest.mark.req("B10")
def test_a_replay_from_the_start_forgets_and_says_so(store_url: str, dead: str) -> None:
    redrive("replay", dead, "--from-start", "--repeat-steps", "--reason", "anew", "-u", store_url)

    assert read(store_url, dead).steps_from == 1
    assert "from the start" in redrive("events", "timeline", dead, "-u", store_url).out
    drawn = redrive("events", "show", dead, "-u", store_url).out
    assert drawn.count("forgotten") == 2


def test_a_replay_goes_on_after_the_steps_unless_told_otherwise(store_url: str, dead: str) -> None:
    redrive("replay", dead, "--reason", "on", "-u", store_url)

    assert read(store_url, dead).steps_from == 0


def test_a_planned_redrive_can_start_anew(store_url: str, dead: str) -> None:
    token = redrive("plan", "type:order.paid", "-o", "json", "-u", store_url).json["token"]

    started = redrive(
        "run", token, "--from-start", "--repeat-steps", "--reason", "anew", "--detach", "-o", "json", "-u", store_url
    ).json  # fmt: skip

    assert started["from_start"] is True
    assert "from the start" in redrive("redrives", "show", started["id"], "-u", store_url).out


def test_an_undone_event_says_how_far_that_is(store_url: str) -> None:
    async def work(app: Redrive) -> str:
        @app.compensation(retry=RetryPolicy(max_attempts=1))
        async def refund(payment: int) -> None:
            raise ValueError("the bank says no")

        @app.handler("order.paid", retry=RetryPolicy(max_attempts=1), compensate_on=("dead_letter",))
        async def ship(order: int, ctx: Context) -> None:
            await ctx.step("charge", lambda: 1, compensate=refund)
            raise ValueError("no")

        published = await app.publish("order.paid", 7)
        while (await app.worker().drain()).claimed:
            pass
        return str(published.id)

    dead = in_app(store_url, work)

    drawn = " ".join(redrive("events", "show", dead, "-u", store_url).out.split())
    refused = redrive("replay", dead, "-r", "again", "-u", store_url)
    planned = redrive("plan", "type:order.paid", "-u", store_url).out

    assert "compensation failed" in drawn
    assert "charge compensating" in drawn
    assert refused.code == 4
    assert "its compensation failed, see to that first" in refused.err
    assert "replay its compensation" in " ".join(planned.split())
