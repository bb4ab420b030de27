"""The oracle check: the experiments notice deliberate bugs of the core."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.lab.mutants import MUTANTS, hunt, table
from tests.lab.record import ROOT, Record

FAST = ("sweep-no-guard", "trail-settle-forgotten", "replay-resets-key")
OF_KEPT_SEEDS = (
    "drain-hangs", "raw-disk-error", "clock-error-kills", "stopping-spins", "settle-no-fence", "two-holders",
)  # fmt: skip


def test_every_mutant_still_fits_the_source() -> None:
    unfit = [each.name for each in MUTANTS if (ROOT / "src" / "redrive" / each.file).read_text().count(each.old) != 1]

    assert not unfit
    assert len({each.name for each in MUTANTS}) == len(MUTANTS) >= 30


@pytest.mark.promise("fence", "trail")
@pytest.mark.parametrize("name", FAST)
def test_a_deliberate_bug_is_caught(name: str) -> None:
    (mutant,) = (each for each in MUTANTS if each.name == name)

    caught = hunt(mutant)

    assert caught.is_caught, table([caught])


@pytest.mark.promise("fence", "not-stuck")
@pytest.mark.parametrize("name", OF_KEPT_SEEDS)
def test_a_kept_seed_still_leads_to_its_bug(name: str) -> None:
    """When the engine takes other steps, a seed may lead elsewhere: find another (``hunt``), and keep that."""
    (mutant,) = (each for each in MUTANTS if each.name == name)

    caught = hunt(mutant, seeds=0)

    assert caught.is_caught, table([caught])


@pytest.mark.lab
@pytest.mark.promise("fence", "trail", "effect-once", "order", "redrive-safe")
@pytest.mark.timeout(0)
def test_every_deliberate_bug_is_caught(record: Callable[..., Record]) -> None:
    noted = record("mutants")

    results = [hunt(each) for each in MUTANTS]

    noted.cases, noted.reached["caught"] = len(results), sum(each.is_caught for each in results)
    assert all(each.is_caught for each in results), table([each for each in results if not each.is_caught])
