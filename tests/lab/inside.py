"""Inside: the site over a database with one of everything, in this process, and callers of every role."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpx
from fastapi import FastAPI

from redrive import Redrive, RetryPolicy
from redrive.operate.auth import Role
from redrive.operate.web import redrive_asgi
from redrive.operate.web.guard import Guarded
from tests.lab.rich import Known, filled, with_handlers
from tests.web.conftest import browser


@dataclass(frozen=True, slots=True)
class Inside:
    """A served app, and what is in its database."""

    app: Redrive
    web: FastAPI
    known: Known

    def client(self, role: Role | None, **options: Any) -> httpx.AsyncClient:
        """Make a caller of a role, or one who shows nothing."""
        shown = {} if role is None else {"Authorization": f"Bearer {self.known.tokens[role]}"}
        return browser(self.web, **{**options, "headers": {**shown, **options.get("headers", {})}})

    def places(self) -> Iterator[tuple[Guarded, str, str]]:
        """Go through every route that ends, with ids of what is there: route, method, path."""
        known = self.known
        ids = {
            "event_id": known.events["dead"], "redrive_id": known.redrives[0], "fingerprint": known.groups[0],
            "name": known.dependency, "token_id": "viewer-1", "batch_id": known.batch, "run_id": known.run,
            "finding_id": known.finding, "correlation_id": known.correlation,
        }  # fmt: skip
        for route in self.web.routes:
            if isinstance(route, Guarded) and not route.path.endswith("/changes"):
                path = re.sub(r"{(\w+)(?::path)?}", lambda match: ids[match[1]], route.path)
                for method in sorted(route.methods or ()):
                    yield route, method, path


@asynccontextmanager
async def inside(url: str) -> AsyncIterator[Inside]:
    """Fill a database and put the site before it."""
    async with with_handlers(Redrive(url, migrate=True, retry=RetryPolicy(max_attempts=1))) as app:
        known = await filled(app)
        yield Inside(app, redrive_asgi(app), known)
