"""Run seeds by hand, or a single one again with its trace.

python -m tests.lab.simulation SEED              one seed, with its trace
python -m tests.lab.simulation FROM UP_TO        many, and what they have reached
python -m tests.lab.simulation digests FROM UP_TO
python -m tests.lab.simulation hunt FROM UP_TO   the kept ones and these, until something is wrong
python -m tests.lab.simulation wide …            each of these, of the wider world (wider.py)
python -m tests.lab.simulation redriven …        each of these, of the world of redrives (redriven.py)
python -m tests.lab.simulation story [POINT …]   the story, killed at these points: 12 await:40 (see points.py)
python -m tests.lab.simulation crashes STRIDE [KIND …]  every so many of its points, until something is wrong
python -m tests.lab.simulation pairs SEED SECONDS       two crashes at random, for so long
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from itertools import chain

from tests.lab.simulation.disk import a_disk
from tests.lab.simulation.points import KINDS, Point, pairs, point, singles
from tests.lab.simulation.redriven import Redriven
from tests.lab.simulation.running import digests, kept, quiet, run_seed, run_seeds, run_story
from tests.lab.simulation.script import tell
from tests.lab.simulation.wider import Wider
from tests.lab.simulation.world import World


def main(arguments: Sequence[str]) -> int:
    worlds: dict[str, type[World]] = {each.name: each for each in (Wider, Redriven)}
    world = worlds.get(arguments[0], World) if arguments else World
    match arguments[world is not World :]:
        case ["digests", first, end]:
            print("\n".join(digests(range(int(first), int(end)), world=world)))
            return 0
        case ["story", *crashes]:
            return _story([point(crash) for crash in crashes])
        case ["hunt", first, end]:
            seeds = [*(kept() if world is World else ()), *range(int(first), int(end))]
            summary = run_seeds(seeds, until=lambda so_far: bool(so_far.failed), world=world)
        case ["crashes", stride, *kinds]:
            summary = run_story(
                lambda told: chain.from_iterable(singles(told, kind, int(stride)) for kind in kinds or KINDS),
                until=lambda so_far: bool(so_far.failed),
            )
        case ["pairs", seed, seconds]:
            until = time.monotonic() + float(seconds)
            summary = run_story(
                lambda told: pairs(told, int(seed)),
                until=lambda so_far: bool(so_far.failed) or time.monotonic() > until,
            )
        case [first, end]:
            summary = run_seeds(range(int(first), int(end)), world=world)
        case [seed] if seed.isdecimal():
            return _seed(int(seed), world)
        case _:
            print(__doc__)
            return 2
    print(f"{summary.seeds} in {summary.seconds:.1f} s, {summary.seeds / summary.seconds:.1f} a second")
    for name in ("faults", "reached", "violations"):
        print(f"{name}: {dict(sorted(getattr(summary, name).items()))}")
    print(summary)
    return bool(summary.failed)


def _seed(seed: int, world: type[World]) -> int:
    with quiet(), a_disk() as disk:
        outcome = run_seed(disk, seed, say=print, world=world)
    print(f"digest {outcome.digest}")
    print(f"faults {dict(outcome.faults)}")
    print(f"reached {dict(outcome.reached)}")
    print(f"found {outcome.found}" if outcome.found.violations else "nothing is wrong")
    return bool(outcome.found.violations)


def _story(crashes: Sequence[Point]) -> int:
    with quiet(), a_disk() as disk:
        world = tell(disk, crashes, rests=not crashes, say=print)
    print(f"points {dict(world.told.counted)}")
    print(f"found {world.found}" if world.found.violations else "nothing is wrong")
    return bool(world.found.violations)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
