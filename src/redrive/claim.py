"""Claim: how many events a worker takes into its hands.

Enough that no hand is idle while the next ones are on their way, and no more: what lies ready here is out of reach for
other workers. The measure is what was finished from one turn to the next. Handlers that take a second finish almost
nothing in 3 ms, so almost nothing is fetched ahead; handlers that take 10 µs empty their hands many times over.

Next: ``deliver`` runs the handler, ``settle`` writes down how it went.
"""

from collections.abc import Sequence
from typing import Final

from redrive.store.base import PAYLOAD, Row

AHEAD_LIMIT: Final = 1_000  # above this a batch is no cheaper per event, measured on both stores
AHEAD_BYTES: Final = 8 * 1024 * 1024


class Appetite:
    """Decides how many events to ask for."""

    def __init__(self, concurrency: int) -> None:
        self._concurrency = concurrency
        self._ahead = 0
        self._limit = AHEAD_LIMIT

    def want(self, held: int) -> int:
        """How many more to claim when this many are in hand."""
        return max(0, self._concurrency + self._ahead - held)

    def learn(self, finished: int, claimed: Sequence[Row]) -> None:
        """Take in how many were finished since the turn before, and how large the new ones are."""
        if claimed:
            size = sum(len(row[PAYLOAD]) for row in claimed) // len(claimed)
            self._limit = min(AHEAD_LIMIT, AHEAD_BYTES // (size + 1))
        # Twice: one batch being worked on while the next is being fetched.
        self._ahead = min(2 * finished, self._limit)
