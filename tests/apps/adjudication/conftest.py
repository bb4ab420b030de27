"""The adjudication system on each store, and somebody who calls it over HTTP."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from uuid import UUID

import httpx
import pytest

from redrive import Event, Redrive
from redrive.apps.adjudication import make

RAILS = "tests.apps.adjudication.rails"


class System:
    """A running system: its app, and its HTTP side."""

    def __init__(self, app: Redrive, http: httpx.AsyncClient) -> None:
        self.app = app
        self.http = http

    async def submit(self, receipt_id: str, amount: int = 1_000) -> dict[str, Any]:
        body = {"transaction_receipt_id": receipt_id, "buyer": "bo", "seller": "sal", "currency": "EUR"}
        said = await self.http.post("/receipts", json={**body, "amount_minor": amount})
        assert said.status_code in {200, 201}, said.text
        return said.json()  # type: ignore[no-any-return]

    async def adjudicate(self, receipt_id: str, outcome: str = "release", **more: Any) -> httpx.Response:
        body = {"outcome": outcome, "by": "judy", **more}
        return await self.http.post(f"/receipts/{receipt_id}/adjudication", json=body)

    async def look(self, receipt_id: str) -> dict[str, Any]:
        said = await self.http.get(f"/receipts/{receipt_id}")
        assert said.status_code == 200, said.text
        return said.json()  # type: ignore[no-any-return]

    async def execution(self, receipt_id: str) -> Event:
        event = await self.app.event(UUID((await self.look(receipt_id))["execution"]["event_id"]))
        assert event is not None
        return event

    async def rows(self, table: str, columns: str = "*") -> list[tuple[Any, ...]]:
        name = f"adjudication_{table}" if self.app.dialect == "sqlite" else f"adjudication.{table}"
        async with self.app.transaction() as tx:
            return [tuple(row) for row in await tx.fetch(f"select {columns} from {name} order by 1, 2")]

    async def act(self, sql: str) -> None:
        """Run a statement that is written for PostgreSQL."""
        async with self.app.transaction() as tx:
            await tx.execute(sql.replace("adjudication.", "adjudication_") if self.app.dialect == "sqlite" else sql)

    async def jam(self, table: str) -> None:
        """Have the database refuse every further row of a table."""
        if self.app.dialect == "sqlite":
            body = "begin select raise(abort, 'no room'); end"
            await self.act(f"create trigger jam before insert on adjudication.{table} {body}")
        else:
            body = "for each row execute function adjudication.refuse('no room')"
            await self.act(f"create trigger jam before insert on adjudication.{table} {body}")

    async def mend(self, table: str) -> None:
        await self.act("drop trigger jam" + ("" if self.app.dialect == "sqlite" else f" on adjudication.{table}"))


@asynccontextmanager
async def running(url: str, **environ: str) -> AsyncIterator[System]:
    """Open a system whose tables are there."""
    async with Redrive(url, migrate=True):
        pass
    app = make({"REDRIVE_URL": url, "ADJUDICATION_ISOLATION": "none", **environ})
    async with app, http(app) as client:
        yield System(app, client)


def http(app: Redrive) -> httpx.AsyncClient:
    return httpx.AsyncClient(
        transport=httpx.ASGITransport(app=app.mounts["/adjudication"]), base_url="http://adjudication"
    )


@pytest.fixture
async def system(store_url: str) -> AsyncIterator[System]:
    """A system that only books."""
    async with running(store_url) as system:
        yield system


@pytest.fixture
async def with_rail(store_url: str, tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[System]:
    """A system that pays over a rail which misbehaves as the receipt says; see rails.py."""
    monkeypatch.setenv("RAIL_FOLDER", str(tmp_path))
    async with running(store_url, ADJUDICATION_DISPATCH=f"{RAILS}:pay") as system:
        yield system
