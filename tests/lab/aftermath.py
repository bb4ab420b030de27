"""Afterwards: the faults are over. Wait until nothing is left to do, then look at everything.

What ``checker`` looks at, and what only several real processes can get wrong:

    stale settle   delivered by another attempt than the last one that was claimed
    half done      an effect without its follow-up, or a follow-up without its effect
    out of order   an event of an ordering key after a later one
    notice error   a batch that is over and has sent a notice never, or twice
    raw error      something that Redrive does not name came out of a call
    ended          a worker or a producer that came to an end by itself
    extra attempt  more attempts lost than those held who were killed
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from redrive.batch import FINAL_NOTICE, FIRST_NOTICE
from tests.lab import ledger
from tests.lab.checker import Finding, check, query
from tests.lab.crew import Crew
from tests.lab.hand import MAX_ATTEMPTS
from tests.lab.record import Record
from tests.waiting import wait_until


def drain(crew: Crew, seconds: float = 120.0) -> None:
    """Stop publishing, let the workers finish, and end them."""
    crew.end("producer")
    wait_until(lambda: not unfinished(crew.url), seconds, f"left: {unfinished(crew.url)}; {crew.said()}")
    crew.end("worker")


def unfinished(url: str) -> dict[str, int]:
    """Count what is pending, in flight or blocked by a brake; what stands behind a dead letter waits for somebody."""
    text = (
        "select status, count(*) as n from {}outbox where status in ('pending', 'in_flight')"
        " or (status = 'blocked' and blocked_on is not null and ordering_key is null) group by status"
    )
    rows = query(url, text)
    return {row["status"]: row["n"] for row in rows}


def look(crew: Crew, *, is_bounded: bool = True) -> Finding:
    """Name everything that must never be; ``is_bounded``: nobody lost a lease but those who were killed."""
    found = check(crew.url, crew.ledger, max_attempts=MAX_ATTEMPTS)
    lines = [*ledger.lines(crew.ledger)]
    for line in lines:
        if line["what"] == "order":
            found.add("out of order", f"{line['n']} of {line['key']} came after {line['after']}")
        if line["what"] == "raw":
            found.add("raw error", f"{line['what_failed']}: {line['error']}")
        if line["what"] == "ended":
            found.add("ended", f"{line['role']}: {line['error']}")
    _check_fences(found, crew.url, lines)
    _check_children(found, crew.url)
    _check_notices(found, crew.url)
    if is_bounded and not starved(crew):
        (row,) = query(crew.url, "select coalesce(sum(lost_count), 0) as n from {}outbox")
        if row["n"] > crew.held:
            found.add("extra attempt", f"{row['n']} attempts were lost, and those who were killed held {crew.held}")
    return found


def starved(crew: Crew) -> int:
    """Count the sessions that were swept though their process was not killed: the machine gave it no time."""
    rows = query(crew.url, "select pid from {}session where lease_until < ended_at")
    return sum(row["pid"] not in crew.killed for row in rows)


def _check_fences(found: Finding, url: str, lines: list[dict[str, Any]]) -> None:
    """An effect belongs to the last claim; so does the success of an attempt without a transaction."""
    rows = query(url, "select e.event_id, e.fence, o.fence as last, o.status from lab_effect e"
                 " join {}outbox o on cast(o.id as text) = e.event_id")  # fmt: skip
    for row in rows:
        if row["fence"] != row["last"] or row["status"] != "delivered":
            found.add("stale settle", f"{row['event_id']}: effect of {row['fence']}, {row['status']} at {row['last']}")
    passed = {(line["id"], line["fence"]) for line in lines if line["what"] == "attempt" and line["answer"] == "ok"}
    for row in query(url, "select id, fence from {}outbox where type = 'plain.work' and status = 'delivered'"):
        if (str(row["id"]), row["fence"]) not in passed:
            found.add("stale settle", f"{row['id']} was delivered at {row['fence']}, where no attempt succeeded")


def _check_children(found: Finding, url: str) -> None:
    rows = query(url, "select type, status, idempotency_key, payload from {}outbox where type in"
                 " ('lab.work', 'lab.child')")  # fmt: skip
    done = {row["key"] for row in query(url, "select key from lab_effect")}
    children = Counter(row["idempotency_key"].removeprefix("child of ") for row in rows if row["type"] == "lab.child")
    parents = {row["idempotency_key"] for row in rows if row["type"] == "lab.work" and "child" in str(row["payload"])}
    for key, times in children.items():
        if times > 1 or key not in done:
            found.add("half done", f"{key} has {times} children, and {'an' if key in done else 'no'} effect")
    alone = Counter(row["idempotency_key"] for row in rows if row["type"] == "lab.work")
    for key in parents:
        if alone[key] == 1 and key in done and not children[key]:
            found.add("half done", f"{key} had its effect without its child")


def _check_notices(found: Finding, url: str) -> None:
    notices: Counter[tuple[str, str]] = Counter()
    for row in query(url, f"select payload from {{}}outbox where type in ('{FIRST_NOTICE}', '{FINAL_NOTICE}')"):
        said = row["payload"] if isinstance(row["payload"], dict) else json.loads(row["payload"])
        notices[said["batch_id"], said["kind"]] += 1
    members = query(url, "select b.id, b.closed_at, count(o.id) as n, count(o.ended_at) as ended from {}batch b"
                    " left join {}outbox o on o.batch_id = b.id group by b.id, b.closed_at")  # fmt: skip
    for row in members:
        is_over = row["closed_at"] is not None and row["n"] == row["ended"]
        for kind in ("first", "final"):
            times = notices[str(row["id"]), kind]
            if times != is_over:
                found.add("notice error", f"batch {row['id']} sent its {kind} notice {times} times; over: {is_over}")


def note_reached(run: Record, crew: Crew) -> None:
    """Count what was seen to happen, so that a quiet run is not taken for a sound one."""
    (row,) = query(crew.url, "select count(*) as n, coalesce(sum(lost_count), 0) as lost, coalesce(sum(cycle), 0) as c"
                   " from {}outbox")  # fmt: skip
    run.reached["lost"] += row["lost"]
    run.reached["held by the killed"] += crew.held
    run.reached["starved"] += starved(crew)
    for row in query(crew.url, "select type, status, count(*) as n from {}outbox group by 1, 2"):
        run.reached[f"{row['type']} {row['status']}"] += row["n"]
    for row in query(crew.url, "select error_class, count(*) as n from {}outbox where status = 'failed' group by 1"):
        run.reached[f"dead letters, {row['error_class']}"] += row["n"]


class Tail:
    """Reads what a ledger has gained since the last look."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._at = path.stat().st_size if path.exists() else 0

    def __iter__(self) -> Iterator[dict[str, Any]]:
        if not self._path.exists():
            return
        with self._path.open("rb") as file:
            file.seek(self._at)
            for line in file:
                if line.endswith(b"\n"):
                    self._at += len(line)
                    yield json.loads(line)

    def skip(self) -> None:
        """Pass over what is there by now."""
        for _ in self:
            pass

    def wait_for(self, what: str, seconds: float, answer: str = "invoke", **facts: Any) -> dict[str, Any]:
        """Wait for a line, and give it."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            for line in self:
                if line["what"] == what and line["answer"] == answer and facts.items() <= line.items():
                    return line
            time.sleep(0.01)
        raise AssertionError(f"nobody wrote {what} {answer} {facts} in {seconds} s")

    def first_attempt(self, after: float, seconds: float) -> float:
        """Say when the first attempt began that began after a moment."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            for line in self:
                if line["what"] == "attempt" and line["answer"] == "invoke" and line["at"] > after:
                    return float(line["at"])
            time.sleep(0.01)
        raise AssertionError(f"no attempt began in {seconds} s")
