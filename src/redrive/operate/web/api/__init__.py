"""The HTTP API: one module a resource, each with a ``router``; thin over ``views`` and ``actions``.

A new resource is a module with a router, and a place in ``ROUTERS``.
"""

from collections.abc import Sequence
from typing import Any, Final

from fastapi import APIRouter
from fastapi.openapi.utils import get_openapi
from starlette.routing import BaseRoute

from redrive import __version__
from redrive.operate.web.api import (
    access,
    audit,
    batches,
    dead_letters,
    dependencies,
    events,
    groups,
    keys,
    live,
    overview,
    policies,
    publish,
    reconcilers,
    redrives,
    reservations,
    schedules,
    tasks,
    transports,
)

ROUTERS: Final[Sequence[APIRouter]] = tuple(
    each.router
    for each in (
        publish,  # first: it is called most, and routes are tried in order
        overview,
        events,
        dead_letters,
        groups,
        redrives,
        keys,
        batches,
        reconcilers,
        schedules,
        reservations,
        transports,
        tasks,
        dependencies,
        policies,
        live,
        audit,
        access,
    )
)


def described(routes: Sequence[BaseRoute]) -> dict[str, Any]:
    """Describe the API (OpenAPI 3.1)."""
    told = get_openapi(
        title="Redrive",
        version=__version__,
        summary="What happens after a failure: events, dead letters, groups, redrives.",
        routes=routes,
    )
    parts = told.setdefault("components", {})
    parts["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer", "description": "`redrive token create`"}}
    told["security"] = [{"token": []}]
    return told
