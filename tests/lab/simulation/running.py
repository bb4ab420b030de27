"""Run seeds, one after the other on one disk, and gather what they show."""

from __future__ import annotations

import gc
import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests.lab.simulation.disk import Disk, a_disk
from tests.lab.simulation.points import Crashes, Told
from tests.lab.simulation.script import tell
from tests.lab.simulation.world import Outcome, World

_COLLECT_EVERY = 4  # seeds: while what they have left is still in the processor's caches
_KEPT = Path(__file__).with_name("seeds.txt")


@dataclass(slots=True)
class Summary:
    """What some seeds have shown together."""

    seeds: int = 0
    seconds: float = 0.0
    faults: Counter[str] = field(default_factory=Counter)
    reached: Counter[str] = field(default_factory=Counter)
    violations: Counter[str] = field(default_factory=Counter)
    failed: dict[str, str] = field(default_factory=dict)

    def add(self, outcome: Outcome, name: str) -> None:
        """Take one in; the name is what repeats it: ``python -m tests.lab.simulation NAME``."""
        self.seeds += 1
        self.faults.update(outcome.faults)
        self.reached.update(outcome.reached)
        if outcome.found.violations:
            self.violations.update(outcome.found.violations)
            self.failed[name] = str(outcome.found)

    def __str__(self) -> str:
        return "\n".join(
            f"{name}: {said}\n    again with: python -m tests.lab.simulation {name}"
            for name, said in list(self.failed.items())[:40]
        )


def kept() -> list[int]:
    """List the seeds that have found something; each line says what."""
    return [int(line.split()[0]) for line in _KEPT.read_text(encoding="utf-8").splitlines()]


def run_seed(disk: Disk, seed: int, say: Callable[[str], None] | None = None, *, world: type[World] = World) -> Outcome:
    disk.empty()
    return world(disk, seed, say=say).run()


def run_seeds(
    seeds: Iterable[int], *, until: Callable[[Summary], bool] = lambda _: False, world: type[World] = World
) -> Summary:
    """Run them all, or until somebody has seen enough."""
    summary = Summary()
    began = time.monotonic()
    with quiet(), a_disk() as disk:
        for seed in seeds:
            summary.add(run_seed(disk, seed, world=world), f"{world.name} {seed}".strip())
            if summary.seeds % _COLLECT_EVERY == 0:
                gc.collect()
            if until(summary):
                break
    summary.seconds = time.monotonic() - began
    return summary


def run_story(tellings: Callable[[Told], Iterable[Crashes]], *, until: Callable[[Summary], bool]) -> Summary:
    """Tell the story as it is, and then with crashes, chosen by how many points of each kind it has."""
    summary = Summary()
    began = time.monotonic()
    with quiet(), a_disk() as disk:
        summary.add(tell(disk, rests=True).outcome, "story")
        as_it_is = tell(disk)
        summary.add(as_it_is.outcome, "story")
        for crashes in tellings(as_it_is.told):
            summary.add(tell(disk, crashes).outcome, " ".join(("story", *map(str, crashes))))
            if summary.seeds % _COLLECT_EVERY == 0:
                gc.collect()
            if until(summary):
                break
    summary.seconds = time.monotonic() - began
    return summary


def digests(seeds: Iterable[int], *, world: type[World] = World) -> list[str]:
    with quiet(), a_disk() as disk:
        return [run_seed(disk, seed, world=world).digest for seed in seeds]


@contextmanager
def quiet() -> Iterator[None]:
    """Spare the log of a thousand crashes, and the collector that would look through all there was before them."""
    log = logging.getLogger("redrive")
    level, collects, set_aside = log.level, gc.isenabled(), gc.get_freeze_count()
    log.setLevel(logging.CRITICAL + 1)
    gc.disable()
    gc.freeze()
    try:
        yield
    finally:
        log.setLevel(level)
        gc.unfreeze()
        if collects:
            gc.enable()
        gc.collect()
        if set_aside:  # the tests themselves: nobody need look at them again
            gc.freeze()
