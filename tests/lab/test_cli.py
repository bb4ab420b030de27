"""The command line: every command with arguments that fit, nearly fit and do not fit at all.

Whatever is typed ends with an exit code that is documented, says in bounded words what is wrong, sends nothing to the
terminal that a terminal would obey, and with ``-o json`` prints JSON when it is done. What only looks changes nothing.
"""

from __future__ import annotations

import json
import random
import re
import shlex
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from redrive.operate.cli.outcome import Code
from redrive.operate.cli.root import app as commands
from tests.lab.argv import LOOKING, Argv, Line, leaves
from tests.lab.conftest import Fresh
from tests.lab.record import Record
from tests.lab.rich import fill
from tests.lab.watch import Watch, watching
from tests.operate.test_hostile import OBEYED

pytestmark = pytest.mark.promise("closed")

MOST_SAID = 20_000
_UNEXPECTED = re.compile(r"redrive: unexpected (\w+)")


def typed(line: Line, run: Record, watch: Watch, seed: int) -> None:
    """Run one line in this process, and judge how it ended."""
    environ = {"REDRIVE_URL": None, "REDRIVE_DEBUG": None, "COLUMNS": "80", "NO_COLOR": "1"}
    ended = CliRunner().invoke(commands, list(line.arguments), input=line.stdin, env=environ)
    run.cases += 1
    run.faults[line.kind] += 1
    run.reached[f"exit {ended.exit_code}"] += 1
    for what in wrong(line, ended, watch):
        run.seed = seed
        run.violations[what] += 1
        print(f"{what}: redrive {shlex.join(line.arguments)} < {line.stdin[:200]!r}")
        print(
            f"  exit {ended.exit_code}, {ended.exception!r}\n  {ended.stdout[-500:]!r}\n  {ended.stderr[-1_500:]!r}\n"
        )


def wrong(line: Line, ended: Any, watch: Watch) -> Iterator[str]:
    """Name what is wrong with an end."""
    if ended.exception is not None and not isinstance(ended.exception, SystemExit):
        yield "exception"
    if "Traceback" in ended.output or _UNEXPECTED.search(ended.stderr):
        yield "traceback"
    if ended.exit_code not in set(Code):
        yield "exit code"
    if ended.exit_code and not ended.stderr.strip() and not _may_fail_silently(line):
        yield "failed without a word"
    if len(ended.stderr) > MOST_SAID:
        yield "said too much"
    if OBEYED.search(ended.stdout) or OBEYED.search(ended.stderr):
        yield "obeyed by a terminal"
    if ended.exit_code == 0 and line.says_json and not _is_json(ended.stdout, line):
        yield "no JSON"
    if watch.has_changed() and line.command in LOOKING:
        yield "looking has changed something"


def _may_fail_silently(line: Line) -> bool:
    """Some say on standard output what they found, and by their code that it is not well."""
    return line.command in (
        "doctor",
        "attention",
        "audit verify",
        "events cancel",
        "dlq discard",
        "dlq restore",
        "replay",
    )


def _is_json(out: str, line: Line) -> bool:
    if "--help" in line.arguments or "--version" in line.arguments or "-h" in line.arguments:
        return True
    try:
        json.loads(out)
    except ValueError:
        return False
    return True


def round_of(url: str, folder: Path, run: Record, seed: int, count: int) -> None:
    """Type some lines at a database of their own."""
    known = fill(url)
    with watching(url) as watch:
        for line in Argv(known, folder, random.Random(seed)).lines(count):
            typed(line, run, watch, seed)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Have a folder of their own for the commands to run in."""
    made = tmp_path / "here"
    made.mkdir()
    monkeypatch.chdir(made)
    return made


def test_the_commands_that_only_look_are_all_there() -> None:
    assert not LOOKING - {name for name, _ in leaves()}


def test_no_arguments_are_an_error_of_ours(
    fresh_tables: Fresh, folder: Path, seed: int, record: Callable[..., Record]
) -> None:
    run = record("cli", fresh_tables.store)
    with fresh_tables.database() as url:
        round_of(url, folder, run, seed, count=240)
    assert run.reached["exit 0"] > 30
    assert run.reached["exit 2"] > 30


@pytest.mark.lab
@pytest.mark.timeout(0)
def test_thousands_of_arguments(
    fresh_tables: Fresh, folder: Path, seed: int, budget: float, record: Callable[..., Record]
) -> None:
    """Go round with new seeds until the time is over, or something was found: then that seed repeats it."""
    run, end = record("cli", fresh_tables.store), time.monotonic() + budget
    rounds = 0
    while not run.violations and (not rounds or time.monotonic() < end):
        with fresh_tables.database() as url:
            round_of(url, folder, run, seed + rounds, count=500)
        rounds += 1
    run.figures["rounds"] = float(rounds)
