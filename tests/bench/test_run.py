"""`make bench` in a source checkout: it starts its own servers, and writes down figures of one run only."""

from __future__ import annotations

import json
import os
import re
import runpy
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]


def test_a_checkout_measures_on_a_postgres_of_its_own_wherever_it_is_started_from(tmp_path: Path) -> None:
    for part in ("src", "bench", "tests"):
        shutil.copytree(
            ROOT / part, tmp_path / "here" / part, ignore=shutil.ignore_patterns("__pycache__", "node_modules")
        )
    environment = {name: value for name, value in os.environ.items() if not name.startswith("REDRIVE_")}
    command = [sys.executable, str(tmp_path / "here" / "bench" / "run.py"), "drain", "--store", "postgres"]

    ended = subprocess.run(
        [*command, "--events", "200", "--repeat", "1", "--json"], capture_output=True, text=True, check=False, cwd="/",
        env={**environment, "PYTHONPATH": str(tmp_path / "here" / "src")},
    )  # fmt: skip

    assert ended.returncode == 0, ended.stderr
    assert json.loads(ended.stdout)["ratio_to_raw"] > 0


def test_what_is_installed_does_not_look_for_the_tests() -> None:
    looking = re.compile(r"\b(?:from|import) tests\b|[\"']tests(?:\.\w+)*[\"']")

    found = [path for path in (ROOT / "src").rglob("*.py") if looking.search(path.read_text(encoding="utf-8"))]

    assert found == []


def _report(store: str, rate: int) -> dict[str, Any]:
    return {
        "scenario": "drain", "store": store, "rate": rate, "ratio_to_raw": 0.8312, "commit": "0123abc",
        "table": [], "notes": [],
        "spread": {"rate": {"min": rate - 10, "median": rate, "max": rate + 10}}, "settings": {"repeat": 3},
        "goals": [{"figure": "ratio_to_raw", "wanted": 0.9, "at_most": False, "reached": False}],
        "machine": {"cores": 2, "cpu": "a processor", "memory_gb": 4, "system": "Linux", "load_1_min": 0.1},
        "versions": {"python": "3.11.2", "store": f"{store} 1.0"}, "at": "2026-11-18T00:00:00+00:00",
    }  # fmt: skip


@pytest.fixture
def tabulate() -> dict[str, Any]:
    return runpy.run_path(str(ROOT / "bench" / "tabulate.py"))


def test_the_page_has_median_spread_target_and_commit_of_every_figure(tabulate: dict[str, Any]) -> None:
    page = tabulate["page"]([_report("sqlite", 20_000), {"scenario": "http", "store": "sqlite", "error": "it broke"}])

    assert "commit 0123abc" in page
    assert "| rate | 20,000 | 19,990 … 20,010 |" in page
    assert "| ratio_to_raw | 0.8312 |  | ≥ 0.9 | **missed** |" in page
    assert "## http, sqlite\n\nno figure: it broke" in page


def test_the_readme_takes_the_figures_of_this_run_and_keeps_none_of_the_last(
    tabulate: dict[str, Any], tmp_path: Path
) -> None:
    readme = tmp_path / "README.md"
    readme.write_text(f"before\n{tabulate['BEGINS']}\n99,999 events\n{tabulate['ENDS']}\nafter\n")

    tabulate["into_readme"](readme, [_report("postgres", 30_000), _report("sqlite", 20_000)])

    text = readme.read_text()
    assert "99,999" not in text
    assert "30,000 (29,990 … 30,010) no-op events a second on PostgreSQL (83% of a bare asyncpg loop)" in text
    assert "commit 0123abc" in text
    assert text.startswith("before\n")
    assert text.endswith("after\n")


def test_the_readme_has_a_place_for_the_figures(tabulate: dict[str, Any]) -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")

    assert text.count(tabulate["BEGINS"]) == text.count(tabulate["ENDS"]) == 1
