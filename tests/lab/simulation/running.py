"""Run seeds, one after the other on one disk, and gather what they show."""

from __future__ import annotations

import gc
import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from tests.lab.simulation.disk import Disk, a_disk
from tests.lab.simulation.world import Outcome, World

_COLLECT_EVERY = 50


@dataclass(slots=True)
class Summary:
    """What some seeds have shown together."""

    seeds: int = 0
    seconds: float = 0.0
    faults: Counter[str] = field(default_factory=Counter)
    reached: Counter[str] = field(default_factory=Counter)
    violations: Counter[str] = field(default_factory=Counter)
    failed: dict[int, str] = field(default_factory=dict)

    def add(self, outcome: Outcome) -> None:
        self.seeds += 1
        self.faults.update(outcome.faults)
        self.reached.update(outcome.reached)
        if outcome.found.violations:
            self.violations.update(outcome.found.violations)
            self.failed[outcome.seed] = str(outcome.found)

    def __str__(self) -> str:
        return "\n".join(
            f"seed {seed}: {said}\n    again with: python -m tests.lab.simulation {seed}"
            for seed, said in list(self.failed.items())[:5]
        )


def run_seed(disk: Disk, seed: int, say: Callable[[str], None] | None = None) -> Outcome:
    disk.empty()
    return World(disk, seed, say=say).run()


def run_seeds(seeds: Iterable[int], *, until: Callable[[Summary], bool] = lambda _: False) -> Summary:
    """Run them all, or until somebody has seen enough."""
    summary = Summary()
    began = time.monotonic()
    with quiet(), a_disk() as disk:
        for seed in seeds:
            summary.add(run_seed(disk, seed))
            if summary.seeds % _COLLECT_EVERY == 0:
                gc.collect()
            if until(summary):
                break
    summary.seconds = time.monotonic() - began
    return summary


@contextmanager
def quiet() -> Iterator[None]:
    """Spare the log of a thousand crashes, and the collector that would look through all of them."""
    log = logging.getLogger("redrive")
    level, collects = log.level, gc.isenabled()
    log.setLevel(logging.CRITICAL + 1)
    gc.disable()
    try:
        yield
    finally:
        log.setLevel(level)
        if collects:
            gc.enable()
        gc.collect()
