"""Retention: how long ended events are kept, and who may still need one.

Delivered and cancelled events are removed after a while, in bounded batches; dead letters only when somebody configured
or asked for it. Age alone is not enough. A row stays, however old it is, while something still needs it:

- an event that has not ended (pending, in flight, blocked) is never removed;
- an event that was cancelled while it ran, until its handler has ended or its session is gone: it keeps its key;
- an event whose compensations have not all been delivered or cancelled: one that failed can still be replayed;
- a compensation whose event is there: the two refer to each other, and the event goes first;
- a dead letter that an open redrive, or a plan that has not expired, may release;
- an event that a redrive released and whose outcome it has not counted;
- a member of a batch that has not sent its final notice;
- a dead letter that other events wait behind, because they share its ordering key: nobody has released them;
- the key of a handled event, while an event with that key could still run or be replayed;
- a batch with members, a redrive with members, a session that holds an event.

Steps and the payloads before an edit are removed with their event. What only mentions an event needs no row: the trail,
findings, the sample of a failure group, reported redrives, events that it caused.

The rules are in ``purge_*.sql`` of each store; tests/lab/test_retention.py has them as a model. The database's clock
says how old a row is, never a machine's; on SQLite see ``Writer.ago`` and decision 0029.
"""

from dataclasses import dataclass
from typing import Self

from redrive import check
from redrive.duration import MAX_SECONDS
from redrive.store.base import Ages


@dataclass(frozen=True, slots=True)
class Retention:
    """Spans in seconds; ``None`` keeps for ever.

    ``handled`` is how long a duplicate published later is recognised. While an event with the key could still run or be
    replayed, the key is kept, whatever the spans are.
    """

    delivered: float | None = 30 * 86_400.0
    failed: float | None = None
    handled: float | None = None

    def __post_init__(self) -> None:
        for name in ("delivered", "failed", "handled"):
            check.maybe(getattr(self, name), check.number, name, 0, MAX_SECONDS)

    @classmethod
    def of(
        cls,
        delivered: str | float | None = "30d",
        failed: str | float | None = None,
        handled: str | float | None = None,
    ) -> Self:
        """Build from durations like ``30d``."""
        given = {"delivered": delivered, "failed": failed, "handled": handled}
        return cls(**{name: check.maybe(span, check.seconds, name) for name, span in given.items()})

    @property
    def ages(self) -> Ages:
        """The ages beyond which a worker removes rows."""
        return Ages(ended=self.delivered, failed=self.failed, handled=self.handled)
