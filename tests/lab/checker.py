"""The checker: reads ledger, database and trail when the faults are over, and names what must never be.

It knows the tables and nothing of the code that writes them: plain SQL on either store, and its own hash of the trail.
The words are those of ``docs/promises.md``:

    lost         acknowledged, and neither ended nor waiting with a time or a reason; or delivered without its effect
    phantom      exists though its publish definitely failed
    duplicate    more than one committed effect of a key
    over-run     more attempts in a cycle than its policy allows
    stuck        in flight with no live holder
    trail gap    a change without its entry, or a broken chain
    ambiguous    cancelled, timed out or late, and the row does not say so
"""

from __future__ import annotations

import hashlib
import json
import sqlite3
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg
from psycopg.rows import dict_row

from tests.lab import ledger

EFFECTS = "create table if not exists lab_effect (key text not null, event_id text not null, fence bigint not null)"
"""Where handlers of the lab note their effects, in their own transaction."""

KNOWN: dict[str, sqlite3.Connection] = {}
"""Connections that stay open, for whoever checks thousands of times."""


@dataclass(slots=True)
class Finding:
    """Violations by name, and the first of each kind in words."""

    violations: Counter[str] = field(default_factory=Counter)
    first: dict[str, str] = field(default_factory=dict)

    def add(self, name: str, said: str) -> None:
        self.violations[name] += 1
        self.first.setdefault(name, said)

    def __str__(self) -> str:
        return "; ".join(f"{name} x {number}: {self.first[name]}" for name, number in self.violations.items())


def query(url: str, text: str, values: Sequence[Any] = ()) -> list[dict[str, Any]]:
    """Ask the database itself; ``{}`` before a table is its schema or prefix, ``?`` a value."""
    if url in KNOWN:
        cursor = KNOWN[url].execute(text.replace("{}", "redrive_"), values)
        names = [column[0] for column in cursor.description]
        return [dict(zip(names, row, strict=True)) for row in cursor]
    if url.startswith("sqlite:///"):
        connection = sqlite3.connect(url.removeprefix("sqlite:///"))
        try:
            connection.row_factory = sqlite3.Row
            return [dict(row) for row in connection.execute(text.replace("{}", "redrive_"), values)]
        finally:
            connection.close()
    with psycopg.connect(url, autocommit=True, row_factory=dict_row) as server:
        return server.execute(text.replace("{}", "redrive.").replace("?", "%s").encode(), values).fetchall()


def check(
    url: str, ledger_path: str | Path | None = None, *, lines: Iterable[Mapping[str, Any]] = (), max_attempts: int,
    has_effects: bool = True, now: int | None = None,
) -> Finding:  # fmt: skip
    """Look at everything. ``now``: the file's time in microseconds, where time is virtual."""
    found = Finding()
    said = [*lines, *(ledger.lines(ledger_path) if ledger_path is not None else ())]
    events = {str(row["id"]): row for row in _events(url, now)}
    effects = Counter(row["key"] for row in query(url, "select key from lab_effect")) if has_effects else Counter()
    _check_publishes(found, said, events)
    _check_events(found, events.values(), max_attempts)
    _check_effects(found, events.values(), effects, has_effects=has_effects)
    _check_trail(found, url, events)
    return found


def _events(url: str, now: int | None) -> list[dict[str, Any]]:
    if url.startswith("sqlite:///"):
        late = str(now) if now is not None else "cast((julianday('now') - 2440587.5) * 86400000000 as integer)"
    else:
        late = "now()"
    live = f"s.id = o.session_id and s.lease_until > {late} and s.ended_at is null"
    return query(
        url,
        "select o.id, o.type, o.target, o.status, o.attempts, o.lost_count, o.fence, o.cycle, o.idempotency_key,"
        " o.ordering_key, o.blocked_on, o.cancelled_by, o.cancel_reason, o.last_error, o.error_class, o.ended_at,"
        f" o.deleted_at, exists (select 1 from {{}}session s where {live}) as is_held, o.due_at <= {late} as is_late"
        " from {}outbox o",
    )


def _check_publishes(found: Finding, said: list[Mapping[str, Any]], events: Mapping[str, Mapping[str, Any]]) -> None:
    for line in said:
        if line["what"] != "publish":
            continue
        for event_id in line.get("ids", ()):
            if line["answer"] == "ok" and event_id not in events:
                found.add("lost", f"{event_id} was acknowledged and its row is gone")
            if line["answer"] == "fail" and event_id in events:
                found.add("phantom", f"{event_id} exists, though its publish failed")


def _check_events(found: Finding, events: Iterable[Mapping[str, Any]], max_attempts: int) -> None:
    for row in events:
        label = f"{row['id']} ({row['type']}, {row['status']}, attempt {row['attempts']}, fence {row['fence']})"
        if row["status"] == "pending" and row["is_late"]:
            found.add("lost", f"{label} is due and nobody runs it")
        if row["status"] == "blocked" and row["blocked_on"] is None and row["ordering_key"] is None:
            found.add("lost", f"{label} is blocked and does not say by what")
        if row["status"] == "in_flight" and not row["is_held"]:
            found.add("stuck", f"{label} has no live holder")
        if row["attempts"] > max_attempts + row["lost_count"]:
            found.add("over-run", f"{label}: {max_attempts} attempts are allowed, and {row['lost_count']} were lost")
        if row["status"] == "cancelled" and not (row["cancelled_by"] and row["cancel_reason"]):
            found.add("ambiguous", f"{label} does not say who cancelled it, or why")
        if row["status"] == "failed" and not (row["last_error"] and row["error_class"]):
            found.add("ambiguous", f"{label} does not say what failed")
        if row["status"] in {"delivered", "failed", "cancelled"} and row["ended_at"] is None:
            found.add("ambiguous", f"{label} has ended and does not say when")


def _check_effects(
    found: Finding, events: Iterable[Mapping[str, Any]], effects: Mapping[str, int], *, has_effects: bool
) -> None:
    for key, times in effects.items():
        if times > 1:
            found.add("duplicate", f"{key} had its effect {times} times")
    for row in events:
        if (
            has_effects
            and row["status"] == "delivered"
            and row["type"].startswith("lab.")
            and not effects.get(row["idempotency_key"])
        ):
            found.add("lost", f"{row['id']} was delivered without its effect")


def _check_trail(found: Finding, url: str, events: Mapping[str, Mapping[str, Any]]) -> None:
    at = "t.at" if url.startswith("sqlite:///") else "(extract(epoch from t.at) * 1000000)::bigint as at"
    columns = f"t.chain, t.seq, {at}, t.event_id, t.kind, t.source, t.actor, t.detail, t.hash"
    heads: dict[str, tuple[int, str]] = {}
    kinds: dict[str, Counter[str]] = defaultdict(Counter)
    for row in query(url, f"select {columns} from {{}}trail t order by 1, 2"):
        seq, previous = heads.get(row["chain"], (0, ""))
        if row["seq"] != seq + 1:
            found.add("trail gap", f"chain {row['chain']} has no entry {seq + 1}")
        event_id = "" if row["event_id"] is None else str(row["event_id"])
        source, actor = (f"{len(row[name])}:{row[name]}" for name in ("source", "actor"))
        whole = (previous, row["chain"], row["seq"], row["at"], event_id, row["kind"], source, actor, row["detail"])
        if hashlib.sha256("\n".join(map(str, whole)).encode()).hexdigest() != row["hash"]:
            found.add("trail gap", f"the hash of entry {row['seq']} of chain {row['chain']} does not fit")
        heads[row["chain"]] = (row["seq"], row["hash"])
        is_end = row["kind"] == "replayed" and json.loads(row["detail"]).get("already_handled")
        kinds[event_id]["ended as handled" if is_end else row["kind"]] += 1  # such a replay begins no cycle
    _check_entries(found, events, kinds)


def _check_entries(found: Finding, events: Mapping[str, Mapping[str, Any]], kinds: Mapping[str, Counter[str]]) -> None:
    for event_id, row in events.items():
        told = kinds.get(event_id, Counter())
        if row["status"] == "failed" and told["dead-lettered"] < 1:
            found.add("trail gap", f"{event_id} failed, and the trail does not say so")
        if row["status"] == "cancelled" and told["cancelled"] < 1:
            found.add("trail gap", f"{event_id} was cancelled, and the trail does not say so")
        if told["replayed"] != row["cycle"]:
            found.add(
                "trail gap", f"{event_id} is in cycle {row['cycle']}, and the trail tells of {told['replayed']} replays"
            )
        if told["lost"] < row["lost_count"] and row["cycle"] == 0:
            found.add(
                "trail gap", f"{event_id} was lost {row['lost_count']} times, and the trail tells of {told['lost']}"
            )
