"""Which tests carry which marks, read from their source: what a run leaves out is seen, too."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path

ROOT = Path(__file__).parents[1]


def carriers(mark: str, *, but_for: str = "") -> dict[str, list[str]]:
    """Find the tests that carry each argument of a mark, in the order of their files; not those with another mark."""
    found: dict[str, list[str]] = defaultdict(list)
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for name, arguments in _marked(tree, mark, but_for):
            for argument in arguments:
                found[argument].append(f"{path.relative_to(ROOT)}::{name}")
    return dict(found)


def _marked(tree: ast.Module, mark: str, but_for: str) -> Iterator[tuple[str, set[str]]]:
    named = {
        target.id: node.value
        for node in tree.body
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    everywhere = _arguments(named["pytestmark"], mark, named) if "pytestmark" in named else set()
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
            own = {each for decorator in node.decorator_list for each in _arguments(decorator, mark, named)}
            if own | everywhere and not any(_is(decorator, but_for) for decorator in node.decorator_list):
                yield node.name, own | everywhere


def _is(node: ast.AST, mark: str) -> bool:
    return isinstance(node, ast.Attribute) and node.attr == mark


def _arguments(node: ast.AST, mark: str, named: Mapping[str, ast.expr]) -> set[str]:
    found: set[str] = set()
    for each in ast.walk(node):
        if isinstance(each, ast.Call) and _is(each.func, mark):
            for argument in each.args:
                if isinstance(argument, ast.Starred):  # *PROMISES: a tuple of the module
                    assert isinstance(argument.value, ast.Name)
                    found |= {str(one) for one in ast.literal_eval(named[argument.value.id])}
                else:
                    found.add(str(ast.literal_eval(argument)))
    return found
