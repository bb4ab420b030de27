"""Argv: lines for the command line, made from the commands themselves: their arguments, options and what those mean.

A value is one that fits, one that fits elsewhere, or dirt; options are left out, repeated and put in the wrong place.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum
from itertools import pairwise
from pathlib import Path
from typing import Any

import typer

from redrive.operate.cli.root import app as commands
from tests.lab.hostile import SELECTIONS, TEXTS
from tests.lab.rich import Known

ENDLESS = frozenset(
    {"serve", "worker", "up", "mcp", "relay", "demo", "bench", "top", "redrives watch", "run", "reconcile run"}
)
"""Commands that go on until they are stopped, or may: these get a last word that they refuse."""

LOOKING = frozenset(
    {
        "doctor", "attention", "events ls", "events show", "events timeline", "task", "batches ls", "batches show",
        "batches groups", "schedules ls", "schedules show", "schedules preview", "reservations ls", "reservations show",
        "deps ls", "deps show", "transports ls", "dlq ls", "dlq show", "dlq export", "groups ls", "groups show",
        "groups explain", "keys ls", "keys show", "redrives ls", "redrives show", "redrives items", "redrives report",
        "reconcile ls", "reconcile runs", "reconcile show", "reconcile findings", "policy ls", "policy show",
        "policy preview", "token ls", "audit ls", "audit verify", "audit heads", "alerts", "dashboard",
    }
)  # fmt: skip
"""Commands that only look: the database is afterwards what it was before."""

_REFUSED = "--no-such-option"


@dataclass(frozen=True, slots=True)
class Line:
    """What is typed; ``kind`` says what is wrong with it, as far as it is known."""

    command: str
    arguments: tuple[str, ...]
    stdin: str
    kind: str

    @property
    def says_json(self) -> bool:
        said = [value for name, value in pairwise(self.arguments) if name in ("-o", "--output")]
        return said[-1:] == ["json"]


def leaves(command: Any = None, path: str = "") -> Iterator[tuple[str, Any]]:
    """Walk through the commands to those that do something."""
    command = command or typer.main.get_command(commands)
    if not hasattr(command, "commands"):
        yield path, command
        return
    for name in command.list_commands(None):
        yield from leaves(command.commands[name], f"{path} {name}".strip())


@dataclass(slots=True)
class Argv:
    """Makes lines."""

    known: Known
    folder: Path
    dice: random.Random
    commands: list[tuple[str, Any]] = field(default_factory=lambda: list(leaves()))

    def __post_init__(self) -> None:
        self._write_files()

    def lines(self, count: int) -> Iterator[Line]:
        """Make some lines of every command in turn."""
        order = self.dice.sample(self.commands, len(self.commands))
        for number in range(count):
            yield self._line(*order[number % len(order)])

    def _line(self, name: str, command: Any) -> Line:
        hostile = self.dice.choice((0.0, 0.0, 0.1, 0.3, 1.0))
        kind = "fits" if not hostile else "hostile" if hostile == 1.0 else "nearly fits"
        words: list[list[str]] = []
        for parameter in command.params:
            words += self._said(parameter, hostile)
        if hostile and self.dice.random() < 0.3:
            kind, words = "in disorder", self._disordered(words)
        flat = [word for each in words for word in each]
        if name in ENDLESS:
            flat.append(_REFUSED)
        if name == "bench":
            flat = [self.dice.choice(("no-such-scenario", "--help", _REFUSED))]
        url = self.known.url if self.dice.random() < 0.97 else self.dice.choice(_URLS)
        before, after = (["-u", url], []) if self.dice.random() < 0.3 else ([], ["-u", url])
        has_url = any(each.name == "url" for each in command.params)
        arguments = (*(before or ([] if has_url else ["-u", url])), *name.split(), *flat, *(after if has_url else []))
        return Line(name, arguments, self._stdin(), kind)

    def _said(self, parameter: Any, hostile: float) -> list[list[str]]:
        """Say a parameter: not at all, once, or several times."""
        if parameter.name in ("url", "help"):
            return []
        if parameter.param_type_name == "argument":
            left_out = 0.1 if parameter.required else 0.4
            count = 0 if self.dice.random() < left_out else self.dice.choice((1, 1, 2)) if parameter.nargs != 1 else 1
            return [[self._value(parameter, hostile)] for _ in range(count)]
        often = parameter.required or parameter.name in ("reason", "output")
        count = self.dice.choice((0, 1, 1, 1, 1) if often else (0, 0, 0, 1))
        count += bool(hostile) and self.dice.random() < 0.1
        option = self.dice.choice(parameter.opts)
        return [[option] if parameter.is_flag else [option, self._value(parameter, hostile)] for _ in range(count)]

    def _disordered(self, words: list[list[str]]) -> list[list[str]]:
        flat = [[word] for each in words for word in each]
        self.dice.shuffle(flat)
        more = [self.dice.choice((*TEXTS, "--help", "--", "-o", "-", "--version"))]
        return [*flat[: self.dice.randrange(len(flat) + 1)], more, *flat[self.dice.randrange(len(flat) + 1) :]]

    # Values

    def _value(self, parameter: Any, hostile: float) -> str:
        if self.dice.random() < hostile:
            return self._unharmful(self.dice.choice(TEXTS))
        fitting = self._fitting(parameter)
        return self.dice.choice(fitting)

    def _unharmful(self, text: str) -> str:
        return text.replace("\0", "\x01") if self.dice.random() < 0.9 else text  # no system passes a NUL on

    def _fitting(self, parameter: Any) -> list[str]:
        kind = parameter.type_descriptor.annotation
        if isinstance(kind, type) and issubclass(kind, Enum):
            return (
                [str(each.value) for each in kind] if parameter.name != "output" else ["json", "json", "jsonl", "table"]
            )
        if kind is int:
            return ["1", "2", "50", "0", "-1", str(2**31), str(2**63 - 1), str(2**63), "9" * 30]
        if kind is float:
            return ["1", "2.5", "0", "-1", "1e300", "nan", "inf"]
        named = self._named()
        metavar = (parameter.metavar or "").strip("[]")
        return (
            named.get(f"{metavar} {parameter.name}")
            or named.get(metavar)
            or named.get(parameter.name)
            or ["order.bad", "1"]
        )

    def _named(self) -> dict[str, list[str]]:
        known = self.known
        ids = [*known.events.values(), known.events["dead"][:12], "0", "-"]
        return {
            "ID": ids, "ID...": ids, "ID...|SELECTION": [*ids, *SELECTIONS], "SELECTION": [*SELECTIONS],
            "ID redrive_id": [*known.redrives], "FP": [*known.groups, known.groups[0].partition(":")[2][:8]],
            "BATCH": [known.batch, "import", known.batch[:8]], "RUN": [known.run], "FINDING": [known.finding],
            "RESOURCE": [known.resource], "KEY": [known.key], "TARGET": [known.target], "TOKEN": [known.plan],
            "CORRELATION": [known.correlation], "TYPE": ["order.bad", "order.*", "*"], "TEXT": ["because", "x" * 2_001],
            "SPAN": ["1h", "90s", "30d", "0s", "1000000d", "9" * 20 + "d"], "NAME by": ["ada", "bob", "agent:x",
            "x" * 300],
            "NAME": [known.schedule, known.reconciler, known.dependency, "order.flaky"], "PATTERN": ["order.*", "*"],
            "NAME=VALUE": ["a=b", "=b", "a", "a=" + "x" * 10_000], "N/s": ["10/s", "1/h", "0/s"], "10%": ["10%", "0",
            "1", "2"],
            "JSON": ["{}", "null", "[1", "NaN", "1e400", '"\\ud800"', "-", "@payload.json", "@nowhere", "[" * 3_000,
            "9" * 5_000],
            "FILE": ["payload.json", "letters.jsonl", "heads.json", "rubbish.bin", "nowhere", ".", "-", "out/of/here"],
            "FILE file": ["letters.jsonl", "payload.json", "rubbish.bin", "nowhere", "-", "app.py", "."],
            "1,5,25": ["1,5,25", "0", "1," * 30], "CRON": ["*/5 * * * *", "0 0 31 2 *", "@daily", "* * * *",
            "99 * * * *"],
            "ZONE": ["Europe/Vienna", "UTC", "../etc"], "INSTANT": ["2030-01-01T00:00:00Z", "now", "2030-13-01"],
            "WHEN": ["1h", "2030-01-01", "0001-01-01T00:00:00Z", "9999-12-31T23:59:59Z"], "ROUTE": ["orders",
            "relay:orders"],
            "payload.FIELD=VALUE": ["payload.id=7", "payload.lines[0].sku=x", "payload.a.b.c=1", "payload=1",
            "payload.id"],
            "payload.FIELD": ["payload.note", "payload.lines[0]", "payload", "payload.nothing"], "OWNER": ["ada"],
            "APP": ["no_such_module_here:app", "json:loads", "app", ":"], "APP|URL": ["json:loads",
            "sqlite:///nowhere.db"],
            "URL": [known.url, *_URLS], "NAME|ID": ["viewer-1", "nobody"], "kind": ["redrive", "group"],
            "full|none|SHARE": ["full", "none", "0.2", "7"], "SPAN|none": ["none", "1m"], "N|none": ["none", "3", "0",
            "x"],
            "RATE|none": ["none", "10/s", "1/0s"], "priority": ["high", "low"], "HOST:PORT": ["127.0.0.1:0", "x:99999"],
        }  # fmt: skip

    def _stdin(self) -> str:
        known = self.known
        return self.dice.choice((
            "", "", "\n", known.events["dead"] + "\n", json.dumps({"id": known.events["dead"]}), '{"id": 7}\n{}\n',
            "{\n",
            '{"id":', "\x1b[31m\n", "null", '{"mended": true}', "é" * 5_000, "0 " * 2_000, "[" * 5_000, "y\n",
        ))  # fmt: skip

    def _write_files(self) -> None:
        made: dict[str, bytes] = {
            "payload.json": b'{"mended": true}', "rubbish.bin": bytes(range(256)) * 20, "app.py": b"app = 7\n",
            "letters.jsonl": b'{"id": "x"}\n{\n[]\n\xff\n' + json.dumps({"id": self.known.events["dead"]}).encode(),
            "heads.json": b'{"operator": [1, "abc"], "x": 7}',
        }  # fmt: skip
        for name, content in made.items():
            (self.folder / name).write_bytes(content)


_URLS = (
    "", "sqlite://", "sqlite:///nowhere/x.db", "sqlite:///rubbish.bin", "sqlite:///.", "sqlite:///:memory:",
    "mysql://a/b",
    "postgresql://[bad", "postgresql://nobody:sesame@127.0.0.1:1/none", "postgresql://127.0.0.1:notaport/x",
    "\x1b[31m", "é",
    "sqlite:///payload.json?mode=ro", "postgresql://127.0.0.1:1/%00", "postgres://127.0.0.1:1/a?sslmode=no",
)  # fmt: skip
