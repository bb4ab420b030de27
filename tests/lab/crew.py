"""The crew: starts, kills, stops and continues real processes (see ``hand``), and knows who was to blame for an end."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import psycopg

from tests import warm
from tests.lab import ledger
from tests.lab.checker import query
from tests.waiting import PATIENCE_SECONDS, wait_until

ROOT = Path(__file__).parents[2]
_HELD = (
    "select count(*) as n from {}outbox o join {}session s on s.id = o.session_id"
    " where o.status = 'in_flight' and s.pid = ? and s.ended_at is null"
)
_STATEMENT_SECONDS = 0.1  # a last statement may be under way in the server


@dataclass(slots=True)
class Member:
    """One process of the crew."""

    pid: int
    role: str
    url: str
    options: dict[str, Any]


@dataclass(slots=True)
class Crew:
    """Those who are at work on one database; ``url`` is where the database itself is asked."""

    url: str
    folder: Path
    _nursery: subprocess.Popen[bytes]
    members: list[Member] = field(default_factory=list)
    killed: set[int] = field(default_factory=set)
    held: int = 0
    """How many events those held who were killed."""

    @property
    def ledger(self) -> Path:
        return self.folder / "ledger"

    def start(self, role: str, *, url: str | None = None, **options: Any) -> Member:
        url = url or self.url
        order = {"url": url, "ledger": str(self.ledger), "role": role, "options": options}
        into, out = _pipes(self._nursery)
        into.write(json.dumps(order).encode() + b"\n")
        into.flush()
        made = Member(int(out.readline()), role, url, options)
        self.members.append(made)
        return made

    def kill(self, member: Member) -> None:
        """End it with SIGKILL, and wait until it is gone."""
        self.members.remove(member)
        self.killed.add(member.pid)
        if member.role == "worker":
            self._count_held(member)
        _signal(member.pid, signal.SIGKILL)
        wait_until(lambda: member.pid in self.exits())

    def _count_held(self, member: Member) -> None:
        """Count what a worker holds while it is stopped: others take it back as soon as its process is gone."""
        self.stop(member)
        time.sleep(_STATEMENT_SECONDS)
        with suppress(sqlite3.Error, psycopg.Error):  # no tables yet, or no room to look
            self.held += query(self.url, _HELD, (member.pid,))[0]["n"]

    def replace(self, member: Member) -> Member:
        """Kill it, and start another with the same task."""
        self.kill(member)
        return self.start(member.role, url=member.url, **member.options)

    def stop(self, member: Member) -> None:
        _signal(member.pid, signal.SIGSTOP)

    def go_on(self, member: Member) -> None:
        _signal(member.pid, signal.SIGCONT)

    def end(self, role: str, seconds: float = PATIENCE_SECONDS) -> None:
        """Tell all of a role to end, and wait until they have."""
        leaving = [each for each in self.members if each.role == role]
        for each in leaving:
            _signal(each.pid, signal.SIGTERM)
        wait_until(lambda: {each.pid for each in leaving} <= self.exits().keys(), seconds)

    def of(self, role: str) -> list[Member]:
        return [each for each in self.members if each.role == role]

    def exits(self) -> dict[int, int]:
        """Say who has ended, and how; the newest if an id came twice."""
        path = self.folder / "exits"
        said = path.read_text().split("\n")[:-1] if path.exists() else []
        return {int(pid): int(code) for pid, code in (line.split() for line in said)}

    def ended_by_themselves(self) -> list[str]:
        """Name those who came to an end that nobody asked for."""
        return [f"{line['role']}: {line['error']}" for line in ledger.lines(self.ledger) if line["what"] == "ended"]

    def said(self) -> str:
        path = self.folder / "said"
        return path.read_text(errors="replace")[-4_000:] if path.exists() else ""


@contextmanager
def crew_on(url: str, folder: Path, *, source: Path | None = None) -> Iterator[Crew]:
    """Have a crew for the length of a block; nobody is left at its end. ``source``: whose code it runs, if not ours."""
    folder.mkdir(parents=True, exist_ok=True)
    words = ["-m", "tests.lab.hand", "--nursery", str(folder)]
    pipes: Any = {"cwd": ROOT, "stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    if source is None:
        started = warm.python(words, env=_environment(), **pipes)
    else:
        started = subprocess.Popen([sys.executable, *words], env=_environment(source), **pipes)
    with started as made:
        crew = Crew(url, folder, made)
        try:
            yield crew
        finally:
            for each in crew.members:
                _signal(each.pid, signal.SIGKILL)
            _pipes(made)[0].close()
            made.wait(10)


def _environment(*first: Path) -> dict[str, str]:
    places = [*map(str, first), str(ROOT), os.environ.get("PYTHONPATH")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, places))}


def _pipes(process: subprocess.Popen[bytes]) -> tuple[IO[bytes], IO[bytes]]:
    assert process.stdin is not None
    assert process.stdout is not None
    return process.stdin, process.stdout


def _signal(pid: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, number)
