"""What is promised. Each promise is proved by tests that carry its id (``@pytest.mark.promise``), and its figures come
from their runs; a promise without a test fails the build (``tests/docs``)."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Promise:
    """Something a user may rely on, and where that ends."""

    says: str
    limits: str


PROMISES = {
    "durable": Promise(
        "What was acknowledged is never lost: it ends, or it stands there with a time or a reason.",
        "`synchronous=FULL` on SQLite; on PostgreSQL as the server is configured",
    ),
    "no-phantom": Promise(
        "A publish that failed left nothing; one in a transaction exists if and only if that was committed.",
        "an answer that was lost is neither: publish again with the same `retry_key`",
    ),
    "effect-once": Promise(
        "An effect made in `ctx.transaction()` happens once for each target and idempotency key.",
        "as long as handled keys are kept; effects outside the database need their own idempotency",
    ),
    "fence": Promise(
        "Who lost the lease settles nothing, and an event has one live lease at a time.",
        "a handler in a thread cannot be stopped; what it does outside a transaction is its own",
    ),
    "not-early": Promise("No attempt begins before `due_at`.", "by the clock of the database"),
    "bounded": Promise(
        "A handler fails at most `max_attempts` times in a cycle; a crash repeats only what its worker held.",
        "at most `max_lost` crashes on top, 5 by default",
    ),
    "not-stuck": Promise(
        "What a dead worker held runs again after its lease and one sweep.", "30 s and 10 s by default"
    ),
    "trail": Promise(
        "Every change that is not simply a delivery has its entry, in its transaction, in an unbroken hash chain.",
        "deliveries are in the outbox itself",
    ),
    "notices": Promise(
        "A batch sends each of its notices once, when it is true.", "the final one is forced at its deadline"
    ),
    "ends-named": Promise(
        "What ended by timeout, deadline or cancel says so, and by whom.",
        "a handler deaf to cancellation is left behind",
    ),
    "one-winner": Promise("A reservation has one holder at a time, and a late holder's write is refused.", ""),
    "one-semantics": Promise(
        "SQLite and PostgreSQL give the same answers, errors and trail.",
        "time is the file's on SQLite, the server's on PostgreSQL",
    ),
    "order": Promise(
        "Of one ordering key one event is under way at a time, in order.", "a dead letter holds its key up"
    ),
    "redrive-safe": Promise(
        "A redrive releases each member once, keeps its identity, and survives a crash at any point.", ""
    ),
    "poison": Promise(
        "No payload and no handler stops the others.",
        "a handler that blocks the event loop slows its worker until it ends",
    ),
    "closed": Promise(
        "Nothing is done or shown without the permission for it, and no input is an unexpected error.", ""
    ),
    "upgrade": Promise(
        "A migration that is killed is there or not, and the next run goes on; old and new code share a database.",
        "nothing was released yet: with earlier commits of this repository; code from before schema 14 goes on while it"
        " runs, and is refused when it starts again",
    ),
    "flat": Promise("Memory, descriptors and latency do not grow with time, dead letters or open snapshots.", ""),
}
