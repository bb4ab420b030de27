"""Run seeds by hand, or a single one again with its trace.

python -m tests.lab.simulation SEED              one seed, with its trace
python -m tests.lab.simulation FROM UP_TO        many, and what they have reached
python -m tests.lab.simulation digests FROM UP_TO
python -m tests.lab.simulation story [CRASH …]   the story of the crash points, killed before these statements
python -m tests.lab.simulation hunt FROM UP_TO   the kept ones and these, until something is wrong
python -m tests.lab.simulation crashes STRIDE    the same for crash points
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from tests.lab.simulation.disk import a_disk
from tests.lab.simulation.running import digests, kept, quiet, run_crashes, run_seed, run_seeds
from tests.lab.simulation.script import tell


def main(arguments: Sequence[str]) -> int:
    match arguments:
        case ["digests", first, end]:
            print("\n".join(digests(range(int(first), int(end)))))
            return 0
        case ["story", *crashes]:
            return _story([int(crash) for crash in crashes])
        case ["hunt", first, end]:
            seeds = [*kept(), *range(int(first), int(end))]
            summary = run_seeds(seeds, until=lambda so_far: bool(so_far.failed))
        case ["crashes", stride]:
            summary = run_crashes(int(stride), until=lambda so_far: bool(so_far.failed))
        case [first, end]:
            summary = run_seeds(range(int(first), int(end)))
        case [seed]:
            return _seed(int(seed))
        case _:
            print(__doc__)
            return 2
    print(f"{summary.seeds} in {summary.seconds:.1f} s, {summary.seeds / summary.seconds:.1f} a second")
    for name in ("faults", "reached", "violations"):
        print(f"{name}: {dict(sorted(getattr(summary, name).items()))}")
    print(summary)
    return bool(summary.failed)


def _seed(seed: int) -> int:
    with quiet(), a_disk() as disk:
        outcome = run_seed(disk, seed, say=print)
    print(f"digest {outcome.digest}")
    print(f"faults {dict(outcome.faults)}")
    print(f"reached {dict(outcome.reached)}")
    print(f"found {outcome.found}" if outcome.found.violations else "nothing is wrong")
    return bool(outcome.found.violations)


def _story(crashes: Sequence[int]) -> int:
    with quiet(), a_disk() as disk:
        world = tell(disk, crashes, rests=not crashes, say=print)
    print(f"found {world.found}" if world.found.violations else "nothing is wrong")
    return bool(world.found.violations)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
