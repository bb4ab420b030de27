"""Each requirement that we claim is named by a test that proves it (``@pytest.mark.req``)."""

from __future__ import annotations

import re

import pytest

from tests import marks

CLAIMED = {
    "O1": "four states in one table; the dead letters are a filter on it",
    "O2": "by default 1 s, doubling, at most 5 min, full jitter",
    "O3": "five attempts by default, per handler by a policy",
    "O4": "errors are terminal or transient by ordered rules, per handler",
    "O5": "a replay is in place and atomic, and keeps identity and the history of failures",
    "O6": "on PostgreSQL the same replay is one SQL function",
    "O7": "each dead letter makes a log line and, if configured, a Sentry event",
    "O8": "a handler's work and its idempotency key are one transaction",
    "O10": "an event of a generation goes to workers of that generation only",
    "O9": "a notification wakes the worker, and correctness never depends on it",
    "O11": "the operator's tools have names, for a person and for an agent (MCP)",
    "O12": "the history of failures is bounded, and what was dropped is counted",
    "O13": "there is a runbook for the operator",
    "A1": "a policy says whether there is another attempt, and when",
    "A2": "retry key, attempts and the time of the next one are visible",
    "A3": "a second submission with a live key returns the existing event, under any race",
    "A4": "the trail is append-only, and the database itself refuses to change it",
    "A6": "a trail entry that cannot be written is an error, and does not stop the run",
    "A7": "a handler that dies in any way ends as a visible failed attempt",
    "A8": "retry policies can be tuned while it runs, audited, for every kind of event",
    "W1": "retries are bounded, stop at once on a permanent failure, and are visible",
    "W2": "a failure says operation, resource, error class and whether a retry is safe",
    "W3": "error classes keep failures of a dependency apart from our own",
    "W4": "blocked by a dependency is a state that spends no attempts and ends at a bounded rate",
    "W5": "a dead letter keeps identity, correlation, causation, history and error class",
    "W6": "a replay is deliberate and recorded; no restart ever replays",
    "H1": "webhooks are stored before they are answered, and handled in the background",
    "H2": "a failure counts, and comes back after base x 2^attempts, bounded",
    "H3": "the policy can come from the environment; a bad value is a clear error at start",
    "H4": "backoff survives a restart",
    "H5": "dead letters can be queried, and only their time-to-live removes them",
    "H6": "signatures are checked, duplicates stored once, sizes limited, 2xx only after the commit",
    "W8": "one winner at write time, with a token; a late holder's write is refused",
    "E1": "lineage from the ZIP to the event, in tables with the columns, states and indexes of the design",
    "E2": "roll-ups of a row follow from its artifacts, and a reconciler proves it",
    "E3": "a retry names all artifacts of its row; requests, retries and results have their Kafka topics",
    "E5": "three attempts, 5 min, doubling, at most 60 min, plus or minus 20 %",
    "E6": "under a row lock what is attached is skipped; every attempt makes one result",
    "E7": "no attachment twice, wherever a process dies",
    "E8": "N1 and N2, each once; N2 forced in time",
    "E9": "a deleted case is permanent; a closed job's N2 never changes",
    "E10": "metrics and alerts of the design",
    "E4": "one scheduler at a time: an event a tick with any number of workers, and a lock that survives a crash",
    "W9": "timeouts, deadlines and cancels end in a named outcome, and finished steps are undone",
    "B1": "replaying many is a durable operation: plan, start, release, outcome",
    "B2": "dead letters are grouped by cause, with a life cycle and what sets them apart",
    "B6": "one event of an ordering key at a time; a failed head holds up its key, visibly",
    "B8": "agents plan, people approve above a few events, on every surface",
    "B9": "a handler can be tried on a dead letter without any effect",
    "B3": "an outage is not poison: shared circuits, and a brake",
    "B4": "a worker whose lease ran out can settle nothing",
    "B5": "a snapshot held open does not slow the claims down",
    "B10": "finished steps are kept, and a retry or a replay goes on after them",
    "E11": "a circuit breaker on the case API",
    "B7": "the trail is hash-chained, and a command checks it",
    "W11": "one task over several services and sites, as a tree, in one place",
    "W12": "two sites over real NATS: partition, delay, duplicates, late messages, a killed worker",
}


@pytest.fixture(scope="module")
def proved() -> dict[str, list[str]]:
    """Find what `make test` and `make lab-short` prove together; the long experiments run now and then only."""
    return marks.carriers("req", but_for="lab")


@pytest.mark.parametrize("requirement", CLAIMED)
def test_a_claimed_requirement_is_proved_by_a_test(requirement: str, proved: dict[str, list[str]]) -> None:
    assert proved.get(requirement), f"no test proves {requirement}: {CLAIMED[requirement]}"


def test_a_requirement_is_named_by_its_id(proved: dict[str, list[str]]) -> None:
    odd = {name: tests for name, tests in proved.items() if not re.fullmatch(r"[A-Z]\d{1,2}", name)}

    assert not odd
