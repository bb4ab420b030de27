"""A process of the simulation: what it has of a real one, and how it dies."""

from __future__ import annotations

import random
import sqlite3
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from redrive.presence import Presence
from tests.lab.simulation.clock import SimClock
from tests.lab.simulation.disk import Dead, Line, trouble
from tests.lab.simulation.loop import LANE, Owner

if TYPE_CHECKING:
    from redrive.app import Redrive
    from redrive.worker import Worker
    from tests.lab.simulation.world import World

BEFORE, AFTER, ANSWER = "killed before a statement", "killed after a statement", "killed between commit and answer"
OUTSIDE, AWAITING = "killed after an effect outside", "killed at an await"
ERRORS = {
    "busy": sqlite3.SQLITE_BUSY,
    "full": sqlite3.SQLITE_FULL,
    "io error": sqlite3.SQLITE_IOERR,
}
_NEVER = sys.maxsize
Strike = tuple[int, str]
"""At which statement of the process what happens."""


class Unseen(Presence):
    """Processes of the simulation are none of the machine's: only their leases tell that they are gone."""

    async def process(self) -> str | None:
        return None


class Process(Owner):
    """A program that runs in the simulation, with lines to the file, until it ends or is killed."""

    def __init__(self, world: World, name: str, strikes: list[Strike], *, skew: float = 0.0) -> None:
        super().__init__(name)
        self.world = world
        self.clock = SimClock(world.loop, world.wall, world.next_seed(), skew)
        self.lines: list[Line] = []
        self.sessions: set[str] = set()
        self.app: Redrive
        self.worker: Worker | None = None
        self.statements = 0
        self.when_killed: Callable[[], None] = lambda: None
        self.wakes: list[Callable[[], None]] = []
        self.alert_at = 0  # the statement at which its lines ask what goes wrong
        self.is_doomed = False  # and they ask after every statement
        self._strikes = sorted(strikes, reverse=True)
        self._after = self._answer = False
        self._busy_left = 0
        self._watch()

    @property
    def session(self) -> str:
        return "" if self.worker is None else str(self.worker.session_id)

    def start(self, main: Callable[[Process], Any]) -> None:
        self.main.context.run(self.world.loop.create_task, main(self))

    # What its lines tell

    def _watch(self) -> None:
        self.alert_at = 0 if self._busy_left else self._strikes[-1][0] if self._strikes else _NEVER
        self.is_doomed = self._after or self._answer

    def about_to(self, sql: str, line: Line) -> BaseException | None:
        """Answer what goes wrong instead of this statement; asked from ``alert_at`` on."""
        error: BaseException | None = None
        if self._busy_left and sql == "begin immediate":
            self._busy_left -= 1
            error = trouble(sqlite3.SQLITE_BUSY, "busy")
        elif self._strikes and self.statements >= self._strikes[-1][0]:
            error = self._strike(self._strikes.pop()[1], sql, line)
        self._watch()
        return error

    def _strike(self, what: str, sql: str, line: Line) -> BaseException | None:
        if what == BEFORE:
            self.kill(what)
            return Dead(self.name)
        if what == AFTER:
            self._after = True
        elif what == ANSWER:
            self._answer = True
        elif what == "busy":
            self.world.fault(self, what)
            self._busy_left = self.world.dice.choice((3, 3, 60))
        else:
            self.world.fault(self, what)
            if self.world.dice.random() < 0.5 or sql == "rollback":  # which always ends the transaction
                line.roll_back()
            return trouble(ERRORS[what], what)
        return None

    def did(self, sql: str, answer: sqlite3.Cursor) -> None:
        """Die after a statement, if that is its lot."""
        if (self._after and sql != "begin immediate") or (self._answer and sql == "commit"):
            answer.close()  # or the connection would go on reading for whoever has it next
            self.kill(AFTER if self._after else ANSWER)
            raise Dead(self.name)

    def acts_outside(self, key: str) -> None:
        """Have an effect that no transaction can take back."""
        self.world.outside[key] += 1

    def changed(self, rows: int) -> None:
        self.world.committed(self, rows)

    def calm(self) -> None:
        """Let nothing more go wrong."""
        self._strikes, self._busy_left = [], 0
        self._after = self._answer = False
        self._watch()

    # Its end

    def kill(self, how: str) -> None:
        """Die: nothing of it runs any more, and nothing of it reaches the file."""
        if self.is_dead:
            return
        self.world.fault(self, how)
        self.vanish()
        self.when_killed()

    def vanish(self) -> None:
        self.world.loop.drop(self)
        for line in self.lines:
            line.close()


def current() -> Process:
    """Say which process this is."""
    owner = LANE.get().owner
    assert isinstance(owner, Process)
    return owner


def chance(dice: random.Random, share: float) -> bool:
    return dice.random() < share
