"""Run one seed again with its trace, or many: ``python -m tests.lab.simulation SEED [UP_TO]``."""

from __future__ import annotations

import sys

from tests.lab.simulation.disk import a_disk
from tests.lab.simulation.running import quiet, run_seed, run_seeds


def main(arguments: list[str]) -> int:
    first = int(arguments[0]) if arguments else 0
    if len(arguments) > 1:
        summary = run_seeds(range(first, int(arguments[1])))
        rate = summary.seeds / summary.seconds
        print(f"{summary.seeds} seeds in {summary.seconds:.1f} s, {rate:.1f} a second")
        for name in ("faults", "reached", "violations"):
            print(f"{name}: {dict(sorted(getattr(summary, name).items()))}")
        print(summary)
        return bool(summary.failed)
    with quiet(), a_disk() as disk:
        outcome = run_seed(disk, first, say=print)
    print(f"digest {outcome.digest}")
    print(f"faults {dict(outcome.faults)}")
    print(f"reached {dict(outcome.reached)}")
    print(f"found {outcome.found}" if outcome.found.violations else "nothing is wrong")
    return bool(outcome.found.violations)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
