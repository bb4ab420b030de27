"""The order of locks: every transaction takes that of the trail last, so that nobody who holds it waits for others."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

import pytest

from tests.lab.record import ROOT

SOURCE = ROOT / "src" / "redrive"
LOCKS = re.compile(
    r"\b(insert into|update redrive|delete from|for (update|share|no key)|set constraints|\w+_lock)\b"
    r"|\bredrive\.(?!iso|moment|standing)\w+\("  # a function of ours
)
SINGLE = {"publish", "release", "revise", "settle", "deliver", "mark_handled", "note_outcomes"}


def after_the_trail(block: list[ast.stmt]) -> Iterator[ast.Call]:
    """Find what a transaction does behind its entry in the trail; a branch that returns ends there."""
    is_told = False
    for each in block:
        calls = [node for node in ast.walk(each) if isinstance(node, ast.Call) and _is_of_transaction(node)]
        if is_told:
            yield from calls
        for inner in (getattr(each, name, []) for name in ("body", "orelse", "finalbody")):
            yield from after_the_trail(inner)
        ends = isinstance(each, ast.If) and isinstance(each.body[-1], ast.Return | ast.Raise)
        is_told |= not ends and any(_verb(node) == "note" for node in calls)


def _is_of_transaction(node: ast.Call) -> bool:
    of = node.func.value if isinstance(node.func, ast.Attribute) else None
    return isinstance(of, ast.Name) and of.id == "tx"


def _verb(node: ast.Call) -> str:
    assert isinstance(node.func, ast.Attribute)
    if node.func.attr != "run" or not isinstance(node.args[0], ast.Constant):
        return node.func.attr
    return str(node.args[0].value)


@pytest.mark.parametrize(
    ("verb", "takes"),
    [("schedules_lock", True), ("batch_look", True), ("redrive_resolve", True), ("redrive_get", False)],
)
def test_a_statement_that_locks_is_known_by_its_text(verb: str, takes: bool) -> None:
    assert bool(LOCKS.search((SOURCE / "store" / "postgres" / f"{verb}.sql").read_text())) is takes


@pytest.mark.promise("trail")
def test_the_trail_is_written_last() -> None:
    """Its lock is everybody's: who takes another one behind it waits for somebody who waits for him."""
    statements = {path.stem: path.read_text() for path in (SOURCE / "store" / "postgres").glob("*.sql")}
    late, seen = [], 0
    for path in sorted(SOURCE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.AsyncWith):
                seen += 1
                verbs = map(_verb, after_the_trail(node.body))
                late += [
                    (path.name, each) for each in verbs if each in SINGLE or LOCKS.search(statements.get(each, ""))
                ]

    assert seen > 50
    assert late == []
