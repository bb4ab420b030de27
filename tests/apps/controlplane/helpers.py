"""A site that a test can wait for, and what must hold of it when all is done."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from redrive import Event, EventFilter, RetryPolicy
from redrive.apps.controlplane.request import Request
from redrive.apps.controlplane.settings import Settings
from redrive.apps.controlplane.tables import Sql
from redrive.apps.controlplane.wiring import ControlPlane, service
from redrive.apps.controlplane.words import KINDS, OWNER_OF, SERVICES, State
from redrive.apps.controlplane.world import SYSTEMS
from tests.waiting import PATIENCE_SECONDS, until
from tests.worker.conftest import working

FAST = RetryPolicy(max_attempts=3, base_delay=0.01, max_delay=0.02)
QUICK = Settings(
    retry=FAST,
    reconcile=None,
    hold="20s",
    circuit={"threshold": 1, "probe_after": 0.1, "probe_cap": 0.2, "release_rate": 1_000.0},
)


def site(url: str, world: object, names: str | Sequence[str] = SERVICES, **said: Any) -> ControlPlane:
    """Make the services of a site; what is said beside the settings goes to ``service``."""
    beside = {name: said.pop(name) for name in ("nats", "also", "token") if name in said}
    settings = replace(QUICK, **said)
    return service(names, settings.site, url, world=str(world), settings=settings, migrate=True, **beside)


async def ask(app: ControlPlane, **said: Any) -> Request:
    assert app.requests is not None
    wanted = {"owner": "ada", "size": "small", "volume_gb": 10, "image": "debian-13", **said}
    return await app.requests.submit(**wanted)


async def found(app: ControlPlane, request: Request | str) -> Request:
    """Read a request that must be there."""
    assert app.requests is not None
    request = await app.requests.get(request if isinstance(request, str) else request.id)  # type: ignore[assignment]
    assert isinstance(request, Request)
    return request


async def state_of(app: ControlPlane, request: Request) -> State:
    return (await found(app, request)).state


async def comes_to(app: ControlPlane, request: Request, state: State, seconds: float = PATIENCE_SECONDS) -> Request:
    """Wait until a request has a state, while somebody works."""

    async def there() -> bool:
        return await state_of(app, request) is state

    await until(there, seconds)
    return await found(app, request)


async def events_of(app: ControlPlane, request: Request, type_: str | None = None) -> list[Event]:
    """List the events of a request, oldest first."""
    return (await app.events(EventFilter(correlation_id=request.id, type=type_, limit=500)))[::-1]


async def drained(app: ControlPlane, request: Request) -> Request:
    """Work until a request stands still, without waiting for anything."""
    await app.worker().drain()
    return await found(app, request)


async def reconciled(app: ControlPlane, *names: str) -> None:
    """Run reconcilers, and let converge what they find."""
    for name in names or list(app.reconcilers):
        await app.reconcilers.run(name)
    async with working(app):
        await until(lambda: quiet(app))


async def quiet(app: ControlPlane) -> bool:
    """Tell whether nothing waits or runs."""
    return not any(status in ("pending", "in_flight", "blocked") for _, status in await app.store.counts())


async def rows(app: ControlPlane, query: str, *values: Any) -> list[tuple[Any, ...]]:
    async with app.transaction() as tx:
        return [tuple(row) for row in await tx.fetch(Sql(app)(query), *values)]


async def assert_sound(*apps: ControlPlane) -> None:
    """What must hold of a site once all has ended: no leak, no two winners, no drift, nothing half-way."""
    requests = await everywhere(apps, "select id, state, address, volume, machine, site from controlplane.request")
    here = [row for row in requests if row[5] == apps[0].site]
    assert {row[1] for row in requests} <= {"READY", "REJECTED", "CANCELLED", "FAILED", "RELEASED"}
    ready = {row[0]: row[2:5] for row in here if row[1] == "READY"}
    for place, (kind, system) in enumerate(zip(KINDS, SYSTEMS, strict=True)):
        known = await everywhere(apps, f"select request, name, state from controlplane.resource where kind = '{kind}'")
        assert {row[2] for row in known} <= {"ACTIVE", "GONE"}, f"a {kind} is half made"
        active = {row[0]: row[1] for row in known if row[2] == "ACTIVE"}
        there = [(thing.request, thing.name) for thing in await apps[0].world.seen(system)]
        assert sorted(there) == sorted(active.items()), f"{OWNER_OF[kind]} have drifted"
        assert active == {request: names[place] for request, names in ready.items()}
    given = await everywhere(apps, "select request, address from controlplane.address where request is not null")
    assert dict(given) == {request: names[0] for request, names in ready.items()}, "an address has leaked"


async def everywhere(apps: Sequence[ControlPlane], query: str) -> list[tuple[Any, ...]]:
    return [row for app in apps for row in await rows(app, query)]
