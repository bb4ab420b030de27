"""The apps are written as anybody could have written them."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import redrive.apps

OPEN = {
    "redrive",
    "redrive.testing",
    "redrive.transport.kafka",
    "redrive.transport.nats",
    "redrive.operate.metrics",
    "redrive.operate.reading",
    "redrive.operate.task",
    "redrive.operate.web",
}
SHARED = {"redrive.apps.wire"}  # by the apps, and held to the same rule: it imports nothing of redrive
FOLDER = Path(redrive.apps.__file__).parent


def imported(source: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (each.name for each in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module or "."


def closed(module: Path) -> list[str]:
    parts = module.relative_to(FOLDER).parts
    own = f"redrive.apps.{parts[0].removesuffix('.py')}"
    ours = [name for name in imported(module.read_text(encoding="utf-8")) if name.split(".")[0] == "redrive"]
    return [name for name in ours if name not in OPEN | SHARED and name != own and not name.startswith(own + ".")]


@pytest.mark.parametrize("module", sorted(FOLDER.rglob("*.py")), ids=lambda path: str(path.relative_to(FOLDER)))
def test_an_app_imports_only_what_is_open_to_everybody(module: Path) -> None:
    assert closed(module) == []


def test_an_import_is_seen_wherever_it_stands() -> None:
    source = "import redrive.store.sqlite\ndef f():\n    from redrive.worker import Worker\nfrom redrive import Redrive"
    assert sorted(imported(source)) == ["redrive", "redrive.store.sqlite", "redrive.worker"]
