"""PostgreSQL: a server whose transactions see more strictly by default gives the same answers.

Everything here relies on ``read committed``: whoever has waited for a lock looks again at what others have written.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack
from urllib.parse import urlsplit
from uuid import UUID

import psycopg
import pytest
from psycopg import sql

from redrive import Redrive, Rejected, RetryPolicy
from redrive.event import Status
from redrive.operate import doctor
from redrive.operate.doctor import Health
from redrive.store.base import EventFilter

EVENTS = 60
APPS = 4


@pytest.fixture(params=["repeatable read", "serializable"])
def strict_url(request: pytest.FixtureRequest, postgres_url: str) -> str:
    with psycopg.connect(postgres_url, autocommit=True) as admin:
        database = sql.Identifier(urlsplit(postgres_url).path.lstrip("/"))
        text = sql.SQL("alter database {} set default_transaction_isolation = {}")
        admin.execute(text.format(database, sql.Literal(request.param)))
    return postgres_url


@pytest.mark.promise("one-semantics")
@pytest.mark.req("O5", "B4")
async def test_workers_and_operators_at_once_do_not_notice_a_stricter_default(strict_url: str) -> None:
    is_broken = True

    async with AsyncExitStack() as stack:
        apps = [await stack.enter_async_context(_app(strict_url, lambda: is_broken)) for _ in range(APPS)]
        events = await apps[0].publish_many([("order.paid", n) for n in range(EVENTS)])
        await asyncio.gather(*(app.worker(concurrency=4).drain() for app in apps))
        dead = await apps[0].events(EventFilter(status=Status.FAILED, limit=EVENTS))

        is_broken = False
        ids = [each.id for each in events]
        await asyncio.gather(*(_replay(apps[n % APPS], each) for n, each in enumerate(ids)))
        await asyncio.gather(*(app.worker(concurrency=4).drain() for app in apps))

        ended = {each.status for each in await apps[0].events(EventFilter(limit=EVENTS))}
        trail = await apps[0].verify_trail()
    assert len(dead) == EVENTS
    assert ended == {Status.DELIVERED}
    assert trail.sound


@pytest.mark.parametrize(("options", "health"), [("", Health.OK), ("?pooler=transaction", Health.WARNING)])
async def test_the_doctor_names_what_only_a_pooler_lets_through(strict_url: str, options: str, health: Health) -> None:
    async with Redrive(strict_url + options) as app:
        (found,) = [check async for check in doctor.look(app) if check.name == "isolation"]

    assert found.health is health


def _app(url: str, is_broken: Callable[[], bool]) -> Redrive:
    app = Redrive(url, retry=RetryPolicy(max_attempts=1))

    @app.handler("order.paid")
    async def ship(payload: int) -> None:
        if is_broken():
            raise Rejected("no carrier")

    return app


async def _replay(app: Redrive, event_id: UUID) -> None:
    await app.replay(event_id, by="ann", reason="mended")
