"""Testing: your handlers in your test suite, without a database and without waiting.

    async with Harness(app) as h:
        await app.publish("order.paid", {"order": 7})
        await h.run_due()
        h.assert_published("mail.requested", payload={"order": 7}, times=1)

For as long as it lasts the app has an empty in-memory store (the real one: SQLite) and a clock that stands still until
it is told to move. Claims, retries, dead letters and transactions are the engine's own, with one event at a time and
seeded dice, so that a test does the same on every run. What moves time or reads is awaited; assertions are not.
``check_idempotent`` runs a handler through everything that makes it run twice.
"""

from redrive.testing.harness import Attempt, Harness, Ran
from redrive.testing.repeat import Repeated, Trial, check_idempotent

__all__ = ["Attempt", "Harness", "Ran", "Repeated", "Trial", "check_idempotent"]
