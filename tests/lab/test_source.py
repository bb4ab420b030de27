"""The source: nothing turns data into code, and nothing is imported by a name that came from outside.

What could is listed here with the reason why it may stand; anything new fails until somebody has given one.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator

import pytest

from tests.lab.record import ROOT, Record

pytestmark = pytest.mark.promise("closed")

SOURCE = ROOT / "src" / "redrive"
_MODULES = {"pickle", "cPickle", "_pickle", "dill", "cloudpickle", "jsonpickle", "marshal", "shelve", "code", "codeop"}
_BUILTINS = {"eval", "exec", "compile", "__import__", "execfile"}
_IMPORTERS = {
    "import_module",
    "find_spec",
    "load_source",
    "run_path",
    "run_module",
    "import_string",
    "locate",
    "load_object",
}
_SHELLS = {("os", "system"), ("os", "popen"), ("subprocess", "getoutput"), ("subprocess", "getstatusoutput")}

ALLOWED = {
    ("child.py", "pickle"): "reads what its own parent wrote into its pipe",
    ("isolate.py", "pickle"): "reads what its own child wrote into its pipe; the child runs the operator's code anyway",
    ("child.py", "import_module"): "names that its own parent has imported: the operator's app",
    ("operate/cli/root.py", "import_module"): "the table of commands above it",
    ("operate/cli/shared.py", "import_module"): "the operator names his app on the command line",
    ("apps/webhooks/destination.py", "import_module"): "the operator names his function in a file of settings",
    ("apps/adjudication/settings.py", "import_module"): "the operator names his function in the environment",
}
"""Where something stands, and why data from outside cannot reach it."""


def dangers(tree: ast.Module) -> Iterator[tuple[str, int]]:
    """Find what could turn data into code: its name, and its line."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((each.name.partition(".")[0], node.lineno) for each in node.names if _is_module(each.name))
        elif isinstance(node, ast.ImportFrom) and node.module and _is_module(node.module):
            yield node.module.partition(".")[0], node.lineno
        elif isinstance(node, ast.Call):
            yield from ((name, node.lineno) for name in _called(node))


def _is_module(name: str) -> bool:
    return name.partition(".")[0] in _MODULES


def _called(call: ast.Call) -> Iterator[str]:
    name = call.func.id if isinstance(call.func, ast.Name) else getattr(call.func, "attr", "")
    of = call.func.value.id if isinstance(call.func, ast.Attribute) and isinstance(call.func.value, ast.Name) else ""
    if name in _BUILTINS and not of:
        yield name
    if name in _IMPORTERS and not (call.args and isinstance(call.args[0], ast.Constant)):
        yield name
    if of == "yaml" and name in ("load", "load_all", "unsafe_load", "full_load"):
        yield "yaml.load"
    if (of, name) in _SHELLS or any(_says_shell(each) for each in call.keywords):
        yield "shell"
    if name == "from_string" or (name == "Markup" and not (call.args and isinstance(call.args[0], ast.Constant))):
        yield "template from data"


def _says_shell(keyword: ast.keyword) -> bool:
    return keyword.arg == "shell" and not (isinstance(keyword.value, ast.Constant) and keyword.value.value is False)


def test_no_source_turns_data_into_code_or_imports_by_its_name(record: Callable[..., Record]) -> None:
    run = record("security", "none")
    found: set[tuple[str, str]] = set()
    for path in sorted(SOURCE.rglob("*.py")):
        run.cases += 1
        where = str(path.relative_to(SOURCE))
        for name, line in dangers(ast.parse(path.read_text(encoding="utf-8"))):
            run.faults["danger in the source"] += 1
            found.add((where, name))
            if (where, name) not in ALLOWED:
                run.violations["data as code"] += 1
                print(f"src/redrive/{where}:{line}: {name}: do without, or say in {__file__} why data cannot reach it")

    assert run.cases > 200
    assert set(ALLOWED) <= found, "these reasons are of what is gone: take them out"


def test_no_template_prints_anything_unescaped() -> None:
    templates = list((SOURCE / "operate" / "console" / "templates").glob("*.html"))
    found = [
        each.name
        for each in templates
        if "|safe" in each.read_text("utf-8").replace(" ", "") or "autoescape" in each.read_text("utf-8")
    ]

    assert len(templates) > 10
    assert found == []


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("import pickle", "pickle"),
        ("from marshal import loads", "marshal"),
        ("eval('1')", "eval"),
        ("import importlib\nimportlib.import_module(name)", "import_module"),
        ("yaml.load(text)", "yaml.load"),
        ("subprocess.run(text, shell=True)", "shell"),
        ("environment.from_string(text)", "template from data"),
        ("Markup(f'<b>{text}</b>')", "template from data"),
    ],
)
def test_what_is_looked_for_is_found(source: str, name: str) -> None:
    assert [each for each, _ in dangers(ast.parse(source))] == [name]


@pytest.mark.parametrize(
    "source", ["re.compile(x)", "importlib.import_module('json')", "yaml.safe_load(x)", "run(shell=False)"]
)
def test_what_is_harmless_is_left_alone(source: str) -> None:
    assert list(dangers(ast.parse(source))) == []
