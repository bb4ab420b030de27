"""The model, continued: redrives. What is planned, what may go, what goes when, and how it ended."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from redrive import Refused
from tests.lab.model import LIVE, Outbox, Row

DAY = 86_400_000_000


@dataclass(slots=True)
class Item:
    """A member of a redrive."""

    n: int
    cycle: int
    fingerprint: str | None
    state: str
    why: str | None = None
    key: tuple[str, str | None] | None = None
    stage: int | None = None


@dataclass(slots=True)
class Plan:
    """A redrive."""

    items: list[Item]
    expires: int
    state: str = "planned"
    max_in_flight: int = 0
    ramp: Sequence[int] = ()
    stage: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    ended: int = 0

    def having(self, *states: str) -> list[Item]:
        return [item for item in self.items if item.state in states]

    @property
    def standing(self) -> tuple[Any, ...]:
        names = ("released", "delivered", "failed_same", "failed_other", "skipped")
        return self.state, self.stage, len(self.having("released")), *(self.counts[name] for name in names)


class Model(Outbox):
    """Everything that is there."""

    def __init__(self, now: int) -> None:
        super().__init__(now)
        self.plans: dict[int, Plan] = {}
        self.planned = 0

    def purge(self, age: int) -> Any:
        gone = super().purge(age)
        before = self.now - age * 1_000_000
        for number, plan in list(self.plans.items()):
            if plan.state in ("done", "aborted") and plan.ended < before:
                plan.items = plan.having("released")
            elif plan.state == "planned" and plan.expires < before:
                plan.items = []
            else:
                continue
            if not plan.items:
                del self.plans[number]
        return gone

    def _is_needed(self, row: Row) -> bool:
        for plan in self.plans.values():
            is_open = plan.state in ("running", "paused", "halted") or (
                plan.state == "planned" and plan.expires > self.now
            )
            wanted = ("released", "ready") if is_open and row.status == "failed" else ("released",)
            if any(item.n == row.n for item in plan.having(*wanted)):
                return True
        return super()._is_needed(row)

    def plan(self, target: str, is_unsafe: bool) -> Any:
        dead = [row for row in self.rows.values() if row.status == "failed" and not row.is_discarded]
        chosen = [(row, self._unfit(row, is_unsafe)) for row in dead if row.target == target]
        items = [
            Item(r.n, r.cycle, r.fingerprint, "ineligible" if why else "ready", why, r.key if r.ordering_key else None)
            for r, why in chosen
        ]
        for why_not in (self._why_second, self._why_behind):
            ready = [item.n for item in items if item.state == "ready"]
            for item in items:
                if item.state == "ready":
                    item.why = why_not(self.rows[item.n], ready)
                    item.state = "ineligible" if item.why else "ready"
        self.planned += 1
        made = self.plans[self.planned] = Plan(items, self.now + DAY)
        able = len(made.having("ready"))
        self._note(None, "redrive-planned", "ann", events=able)
        return self.planned, len(items), able, sorted(Counter(item.why for item in items if item.why).items())

    def start(self, number: int, max_in_flight: int, ramp: Sequence[int]) -> Any:
        plan = self._plan(number)
        able = len(plan.having("ready"))
        if plan.state != "planned" or plan.expires <= self.now or not able:
            raise Refused
        plan.state, plan.max_in_flight, plan.ramp = "running", max_in_flight, ramp
        self._note(None, "redrive-started", "ann", reason="why", events=able)
        return plan.standing

    def carry_on(self, number: int) -> Any:
        if number not in self.plans:
            return None
        plan = self.plans[number]
        self._note_outcomes(plan)
        outstanding = len(plan.having("released"))
        if plan.state != "running":
            return plan.standing
        room = plan.max_in_flight - outstanding
        if plan.stage < len(plan.ramp):
            tried = [item for item in plan.items if item.stage == plan.stage and item.state != "skipped"]
            if len(tried) >= plan.ramp[plan.stage]:
                if not outstanding:
                    self._gate(plan, Counter(item.state for item in tried))
                return plan.standing
            room = min(room, plan.ramp[plan.stage] - len(tried))
        if not (room > 0 and self._release(plan, room)) and not plan.having("ready", "released"):
            plan.state, plan.ended = "done", self.now
        return plan.standing

    def stop(self, number: int, to: str) -> Any:
        plan = self._plan(number)
        if plan.state != "running" and (to == "paused" or plan.state in ("done", "aborted")):
            raise Refused
        plan.state, plan.ended = to, self.now
        self._note(None, f"redrive-{to}", "ann", reason="why", released=plan.counts["released"])
        return plan.standing

    def resume(self, number: int) -> Any:
        plan = self._plan(number)
        if plan.state not in ("paused", "halted"):
            raise Refused
        self._note(None, "redrive-resumed", "ann", was=plan.state)
        plan.stage += plan.state == "halted" and plan.stage < len(plan.ramp)
        plan.state = "running"
        return plan.standing

    # --- what they are made of

    def _plan(self, number: int) -> Plan:
        if number not in self.plans:
            raise Refused
        return self.plans[number]

    def _unfit(self, row: Row, is_unsafe: bool) -> str | None:
        """Say why a dead letter may not even be planned."""
        if (row.target, row.idempotency_key) in self.handled:
            return "already handled"
        if self._has_live_twin(row):
            return "live duplicate of its retry key"
        others = [plan for plan in self.plans.values() if plan.state in ("running", "paused", "halted")]
        if any(item.n == row.n for plan in others for item in plan.having("ready")):
            return "in another redrive"
        return "not safe to retry" if row.is_safe is False and not is_unsafe else None

    def _why_second(self, row: Row, ready: Sequence[int]) -> str | None:
        before = [self.rows[n] for n in ready if n < row.n]
        is_second = row.retry_key is not None and any(r.retry_key == row.retry_key for r in before)
        return "second dead letter with its retry key" if is_second else None

    def _why_behind(self, row: Row, ready: Sequence[int]) -> str | None:
        return "behind a failed head of its ordering key" if self._is_behind(row, ready) else None

    def _release(self, plan: Plan, limit: int) -> bool:
        picked = [item for item in plan.having("ready") if not self._waits_in(plan, item)][:limit]
        self._note_before([item.n for item in picked])
        ready = [item.n for item in plan.having("ready")]
        rows = {item.n: self.rows[item.n] for item in picked if item.n in self.rows}
        whys = [self._why_skipped(item, rows.get(item.n), ready, list(rows.values())) for item in picked]
        for item, why in zip(picked, whys, strict=True):
            item.state, item.why, item.stage = "skipped" if why else "released", why, plan.stage
            plan.counts[item.state] += 1
            if why is None:
                self._again(rows[item.n], priority=3)
        return bool(picked)

    def _waits_in(self, plan: Plan, item: Item) -> bool:
        """Say whether an earlier member of the same key has not ended."""
        before = [other.key for other in plan.having("ready", "released") if other.n < item.n]
        return item.key is not None and item.key in before

    def _why_skipped(self, item: Item, row: Row | None, ready: Sequence[int], picked: Sequence[Row]) -> str | None:
        if row is None:
            return "the event is gone"
        if row.status != "failed":
            return f"it is {row.status}"
        if row.is_discarded:
            return "it was discarded"
        return "it was replayed by somebody else" if row.cycle != item.cycle else self._why_not(row, ready, picked)

    def _note_before(self, going: Sequence[int]) -> None:
        """Write down how these ended in other redrives, before they go round again and it cannot be told any more."""
        super()._note_before(going)
        for plan in self.plans.values():
            if any(item.n in going for item in plan.having("released")):
                self._note_outcomes(plan)

    def _note_outcomes(self, plan: Plan) -> None:
        for item in plan.having("released"):
            row = self.rows.get(item.n)
            if row is not None and row.status in LIVE and row.cycle <= item.cycle + 1:
                continue
            if row is None or row.status == "cancelled":
                item.state = "skipped"
            elif row.status == "delivered":
                item.state = "delivered"
            else:
                item.state = "failed_same" if row.fingerprint == item.fingerprint else "failed_other"
            plan.counts[item.state] += 1

    def _gate(self, plan: Plan, tried: Counter[str]) -> None:
        same, other = tried["failed_same"], tried["failed_other"]
        if same or (other and other / (same + other + tried["delivered"]) > 0.1):
            plan.state = "halted"
            self._note(None, "redrive-halted", "gate")
        else:
            plan.stage += 1
