"""The model: what an outbox does, in plain Python, without a database, concurrency or speed.

One method a verb, named and answering as the drivers in ``sides.py`` do; events and sessions are numbers. A refusal is
raised in the engine's own words. Time is a number of microseconds that only the test moves. Redrives: ``plans.py``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from redrive import EventNotFound, LeaseLost, Refused

LIVE = ("pending", "in_flight", "blocked")
LEASE = 30_000_000
Lease = tuple[int, int]  # an event and the fence it was claimed with


@dataclass(slots=True)
class Row:
    """An event."""

    n: int
    target: str
    retry_key: str | None
    ordering_key: str | None
    idempotency_key: str
    payload: str
    due: int
    priority: int
    status: str = "pending"
    attempts: int = 0
    lost: int = 0
    fence: int = 0
    cycle: int = 0
    session: int = 0
    is_passed: bool = False
    is_discarded: bool = False
    runs: bool = False  # although it was cancelled
    blocked_on: str | None = None
    fingerprint: str | None = None
    is_safe: bool | None = None
    ended: int | None = None
    revisions: int = 0

    @property
    def key(self) -> tuple[str, str | None]:
        return self.target, self.ordering_key

    @property
    def is_in_line(self) -> bool:
        held_up = self.status == "failed" and not self.is_discarded and not self.is_passed
        return self.ordering_key is not None and (self.status in ("pending", "blocked") or held_up)


class Outbox:
    """Events and sessions."""

    def __init__(self, now: int) -> None:
        self.now = now
        self.published = 0
        self.rows: dict[int, Row] = {}
        self.sessions: dict[int, tuple[int, bool]] = {}  # until when, and whether it has ended
        self.handled: set[tuple[str, str]] = set()
        self.held: set[str] = set()
        self.unnoted: set[int] = set()  # replayed one by one: the outcome is counted by a worker, and there is none
        self.trail: list[tuple[int, int | None, str, str, dict[str, Any]]] = []

    # --- the walk

    def publish(self, target: str, retry_key: str | None, ordering_key: str | None, delay: int, priority: int) -> Any:
        for row in self.rows.values():
            if retry_key is not None and (row.target, row.retry_key) == (target, retry_key) and row.status in LIVE:
                return row.n, False
        self.published += 1
        n, due = self.published, self.now + delay * 1_000_000
        self.rows[n] = Row(n, target, retry_key, ordering_key, f"i{n % 4}", str(n), due, priority)
        return n, True

    def claim(self, session: int, want: int) -> Any:
        taken: list[Row] = []
        looked_at: list[Row] = []
        for priority in range(4):
            due = self._due(priority)[: want - len(looked_at)]
            waiting = [row for row in due if row.ordering_key is not None and self._waits(row)]
            for row in due if not self.sessions[session][1] else ():
                looked_at.append(row)
                row.status = "blocked" if row in waiting else "in_flight"
                if row not in waiting:
                    row.attempts, row.fence, row.session = row.attempts + 1, row.fence + 1, session
                    taken.append(row)
        self._promote(row for row in looked_at if row.status == "blocked")
        return sorted((row.n, row.fence, row.attempts) for row in taken)

    def fair(self, want: int) -> int:
        """Want as many as no tie of due times is cut by: which of a tie comes first is nobody's promise."""
        due = [row for priority in range(4) for row in self._due(priority)]
        while 0 < want < len(due) and (due[want - 1].priority, due[want - 1].due) == (
            due[want].priority,
            due[want].due,
        ):
            want += 1
        return want

    def deliver(self, lease: Lease) -> Any:
        return self._end(lease, "delivered")

    def handle(self, lease: Lease, session: int) -> Any:
        """Deliver in a transaction that remembers the key."""
        row = self.rows.get(lease[0])
        if row is None or (row.fence, row.status) != (lease[1], "in_flight"):
            raise LeaseLost
        self._end(lease, "delivered")
        is_first = (row.target, row.idempotency_key) not in self.handled
        self.handled.add((row.target, row.idempotency_key))
        return is_first, self.beat(session)

    def retry(self, lease: Lease, delay: int) -> Any:
        return self._settle(lease, "pending", "f2", due=self.now + delay * 1_000_000, is_safe=True)

    def bury(self, lease: Lease, fingerprint: str, is_safe: bool, is_passed: bool) -> Any:
        return self._settle(lease, "failed", fingerprint, is_safe=is_safe, is_passed=is_passed)

    def block(self, lease: Lease, on: str) -> Any:
        return self._settle(lease, "blocked", "f3", blocked_on=on, is_safe=True)

    def put_back(self, lease: Lease, delay: int) -> Any:
        row = self.rows.get(lease[0])
        if row is None or (row.fence, row.status) != (lease[1], "in_flight"):
            return [lease[0]]
        row.status, row.attempts, row.due = "pending", row.attempts - 1, self.now + delay * 1_000_000
        return []

    def begin(self, session: int) -> Any:
        self.sessions[session] = (self.now + LEASE, False)

    def beat(self, session: int) -> Any:
        if not self.sessions[session][1]:
            self.sessions[session] = (self.now + LEASE, False)
        return not self.sessions[session][1]

    def leave(self, session: int) -> Any:
        self.sessions[session] = (self.sessions[session][0], True)

    def sweep(self, session: int, max_lost: int) -> Any:
        self.sessions = {each: (until, ended or until < self.now) for each, (until, ended) in self.sessions.items()}
        swept = [row for row in self.rows.values() if row.status == "in_flight" and self.sessions[row.session][1]]
        for row in swept:
            row.due = self.now + (min(5 << (row.lost - 1), 60) * 1_000_000 if row.lost else 0)
            row.lost, row.fence = row.lost + 1, row.fence + 1
            if row.lost < max_lost:
                row.status, row.attempts = "pending", row.attempts - 1
            else:
                row.session = session
            self._note(row.n, "lost", "sweeper", lost_count=row.lost)
        return sorted((row.n, row.fence, row.status) for row in swept)

    def unblock(self, on: str, limit: int) -> Any:
        waiting = [row for row in self.rows.values() if row.status == "blocked" and row.blocked_on == on][:limit]
        for row in waiting:
            row.status, row.blocked_on, row.due = "pending", None, self.now
        return [row.n for row in waiting]

    # --- operators

    def cancel(self, n: int) -> Any:
        row = self._row(n)
        if row.status not in LIVE:
            raise Refused
        self._note(n, "cancelled", "ann", reason="why", was=row.status)
        row.runs = row.status == "in_flight"  # it keeps its key until its worker says that the handler has ended
        row.status, row.ended = "cancelled", self.now
        self._promote([row])

    def replay(self, n: int, payload: str | None = None) -> Any:
        row = self._row(n)
        if row.status == "failed" and not row.is_discarded and payload is None and (
            row.target, row.idempotency_key) in self.handled:  # fmt: skip
            row.status, row.ended = "delivered", self.now
            self._promote([row])
            self._note(n, "replayed", "ann", reason="why", generation=0, cycle=row.cycle, from_start=False)
            return
        if row.status != "failed" or row.is_discarded or self._why_not(row):
            raise Refused
        if payload is not None:
            row.revisions, row.payload = row.revisions + 1, payload
            self._note(n, "edited", "ann", reason="why", revision=row.revisions)
        self._note_before([n])
        self._again(row)
        self.unnoted.add(n)

    def discard(self, n: int) -> Any:
        row = self._row(n)
        if row.status != "failed" or row.is_discarded:
            raise Refused
        row.is_discarded = True
        self._promote([row])
        self._note(n, "discarded", "ann", reason="why")

    def restore(self, n: int) -> Any:
        row = self._row(n)
        if not row.is_discarded:
            raise Refused
        row.is_discarded = False
        self._note(n, "restored", "ann", reason="why")

    def release_key(self, target: str, ordering_key: str) -> Any:
        heads = [row for row in self._line((target, ordering_key)) if row.status == "failed"]
        if not heads:
            raise Refused
        for row in heads:
            row.is_passed = True
            self._note(row.n, "key-released", "ann", reason="why", target=target, ordering_key=ordering_key)
        self._promote(heads)
        return heads[0].n

    def hold(self, target: str) -> Any:
        if target in self.held:
            raise Refused
        self.held.add(target)
        self._note(None, "hold-placed", "ann", hold=f"hold:{target}", reason="why")

    def lift(self, target: str) -> Any:
        if target not in self.held:
            raise Refused
        self.held.remove(target)
        self._note(None, "hold-lifted", "ann", hold=f"hold:{target}", reason="why")

    def purge(self, age: int) -> Any:
        before = self.now - age * 1_000_000
        old = [row for row in self.rows.values() if row.ended is not None and row.ended < before]
        old = [row for row in old if not self._is_needed(row)]
        gone = Counter("failed" if row.status == "failed" else "ended" for row in old)
        self.rows = {n: row for n, row in self.rows.items() if row not in old}
        self._promote(row for row in old if row.status == "failed")
        if gone["failed"]:
            self._note(None, "purged", "ann", dead_letters=gone["failed"])
        return gone["ended"], gone["failed"]

    # --- what they are made of

    def _is_needed(self, row: Row) -> bool:
        """Say whether retention must keep an event that has ended (see ``redrive.retention``)."""
        others_wait = row.is_in_line and any(r.status in ("pending", "blocked") for r in self._line(row.key))
        return others_wait or row.n in self.unnoted

    def _note(self, n: int | None, kind: str, actor: str, **facts: Any) -> None:
        self.trail.append((self.now, n, kind, actor, facts))

    def _note_before(self, going: Sequence[int]) -> None:
        """Redrives have something to write down before events go round again (see ``plans.py``)."""
        self.unnoted -= {n for n in going if n in self.rows and self.rows[n].status not in LIVE}

    def _row(self, n: int) -> Row:
        if n not in self.rows:
            raise EventNotFound
        return self.rows[n]

    def _due(self, priority: int) -> list[Row]:
        due = [r for r in self.rows.values() if (r.status, r.priority) == ("pending", priority) and r.due <= self.now]
        return sorted(due, key=lambda row: (row.due, row.n))

    def _line(self, key: tuple[str, str | None]) -> list[Row]:
        return [row for row in self.rows.values() if row.is_in_line and row.key == key]

    def _is_under_way(self, key: tuple[str, str | None]) -> bool:
        return any(row.key == key and (row.status == "in_flight" or row.runs) for row in self.rows.values())

    def _waits(self, row: Row) -> bool:
        return self._is_under_way(row.key) or self._line(row.key)[0] is not row

    def _promote(self, rows: Iterable[Row]) -> None:
        for key in {row.key for row in rows if row.ordering_key is not None}:
            for row in self._line(key)[:1]:
                if row.status == "blocked" and row.blocked_on is None and not self._is_under_way(key):
                    row.status, row.due = "pending", self.now

    def _end(self, lease: Lease, status: str) -> list[int]:
        """End an attempt; one that stands as wanted already is no news: the answer may have been lost on the way."""
        row = self.rows.get(lease[0])
        if row is None or row.fence != lease[1] or row.status not in ("in_flight", status):
            return [lease[0]]
        if row.status == "in_flight":
            row.status, row.ended = status, self.now if status in ("delivered", "failed") else None
            self._promote([row])
        return []

    def _settle(self, lease: Lease, status: str, fingerprint: str, **changes: Any) -> list[int]:
        row = self.rows.get(lease[0])
        if row is not None and (row.fence, row.status) == (lease[1], "in_flight"):
            row.fingerprint, row.blocked_on, row.is_passed = fingerprint, None, False
            for name, value in changes.items():
                setattr(row, name, value)
            facts = {"attempt": row.attempts, "outcome": "failed", "error_class": "broken", "error_type": "E"}
            kind = {"failed": "dead-lettered", "pending": "retry-scheduled", "blocked": "blocked"}[status]
            facts = {"blocked_on": row.blocked_on, "tried": True} if status == "blocked" else facts
            self._note(row.n, kind, "hands", **facts)
        return self._end(lease, status)

    def _again(self, row: Row, priority: int | None = None) -> None:
        row.cycle, row.status, row.due, row.attempts, row.lost = row.cycle + 1, "pending", self.now, 0, 0
        row.priority = row.priority if priority is None else priority
        row.is_passed, row.fingerprint, row.is_safe, row.ended = False, None, None, None
        self._note(row.n, "replayed", "ann", reason="why", generation=0, cycle=row.cycle, from_start=False)

    def _has_live_twin(self, row: Row) -> bool:
        same = [r for r in self.rows.values() if (r.target, r.retry_key) == (row.target, row.retry_key)]
        return row.retry_key is not None and any(r.status in LIVE for r in same)

    def _is_behind(self, row: Row, ready: Sequence[int]) -> bool:
        line = self._line(row.key) if row.ordering_key is not None else []
        return any(r.status == "failed" and r.n < row.n and r.n not in ready for r in line)

    def _why_not(self, row: Row, ready: Sequence[int] = (), picked: Sequence[Row] = ()) -> str | None:
        """Say why a dead letter may not go round again."""
        if (row.target, row.idempotency_key) in self.handled:
            return "already handled"
        twins = [r for r in picked if row.retry_key is not None and r.retry_key == row.retry_key and r.n < row.n]
        if twins or self._has_live_twin(row):
            return "another event with its retry key is under way"
        return "behind a failed head of its ordering key" if self._is_behind(row, ready) else None
