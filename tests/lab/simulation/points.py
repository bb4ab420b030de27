"""The points at which the process of the story can be killed, and how they are written: ``12``, ``await:40``.

    12          before its twelfth statement
    commit:3    between its third commit and the answer
    effect:2    after its second effect outside the database, before anything follows
    await:40    at its fortieth await: before the loop runs the fortieth callback of the process, in whatever thread

Killed after statement n is killed before n + 1: nobody else writes meanwhile. What a crash leaves is a *place*: the
file (so many commits), what was done outside (so many effects) and the time, to a millisecond. All else that it knew is
gone with the process, so of all points of one place one stands for the others: a statement, where there is one.
"""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import NamedTuple

STATEMENT, COMMIT, EFFECT, AWAIT = KINDS = ("statement", "commit", "effect", "await")


class Point(NamedTuple):
    """What is counted, and at which number the process dies."""

    kind: str
    number: int

    def __str__(self) -> str:
        return str(self.number) if self.kind == STATEMENT else f"{self.kind}:{self.number}"


class Told(NamedTuple):
    """How many points of each kind a telling had, and which statements and awaits are of one place."""

    counted: Counter[str]
    places: defaultdict[tuple[int, int, int], list[Point]]


Crashes = tuple[Point, ...]
"""One for every telling but the last."""


def point(text: str) -> Point:
    """Read what ``str`` has written."""
    kind, _, number = text.rpartition(":")
    if (kind or STATEMENT) not in KINDS or not number.isdecimal():
        raise ValueError(f"{text!r} is no crash point: 12, or one of {', '.join(f'{each}:12' for each in KINDS[1:])}")
    return Point(kind or STATEMENT, int(number))


def places(told: Told) -> list[Crashes]:
    """One point of each place, and every commit and effect: all that a single crash can leave behind."""
    ones = [next((each for each in points if each.kind == STATEMENT), points[0]) for points in told.places.values()]
    return [*((one,) for one in ones), *singles(told, COMMIT), *singles(told, EFFECT)]


def singles(told: Told, kind: str, stride: int = 1) -> Iterator[Crashes]:
    """Every ``stride``-th point of a kind that a telling has."""
    return ((Point(kind, number),) for number in range(1, told.counted[kind] + 1, stride))


def pairs(told: Told, seed: int) -> Iterator[Crashes]:
    """Any two, for ever: the second comes in the telling after the first."""
    dice = random.Random(seed)
    while True:
        kinds = dice.choice((STATEMENT, AWAIT)), dice.choice(KINDS)
        first, second = (Point(kind, dice.randrange(1, told.counted[kind] + 1)) for kind in kinds)
        yield first, second
