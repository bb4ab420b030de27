"""Measure: run children, repeat, and say what came out together with everything that influenced it."""

import asyncio
import json
import mmap
import os
import platform
import statistics
import struct
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Final

from redrive.errors import RedriveError
from redrive.operate.cli.bench.place import ROOT, Place

MODULE: Final = "redrive.operate.cli.bench.child"
_TRIAL_BELOW: Final = 10_000
_TRIAL_SAMPLES: Final = 5
Say = Callable[[str], None]


class BenchFailed(RedriveError):
    """A measured process went wrong, so there is no figure."""


@dataclass(frozen=True, slots=True)
class Setup:
    """What was asked for on the command line; ``None``: the scenario's own default."""

    repeat: int = 3
    events: int | None = None
    seconds: float | None = None
    processes: int = 1
    peers: bool = False
    raw: bool = False
    profile: Path | None = None
    broker: str = "nats"
    say: Say = lambda _: None

    def saying(self, scenario: str, turn: int) -> Say:
        """Tell the progress within one repeat."""
        return lambda what: self.say(f"{scenario} {turn + 1}/{self.repeat}: {what}")


@dataclass(frozen=True, slots=True)
class Goal:
    """A figure that was promised."""

    figure: str
    wanted: float
    at_most: bool = False

    def reached(self, value: float) -> bool:
        return value <= self.wanted if self.at_most else value >= self.wanted


@dataclass(slots=True)
class Report:
    """What a scenario found on one store."""

    scenario: str
    store: str
    settings: dict[str, Any]
    figures: dict[str, Any] = field(default_factory=dict)
    spread: dict[str, dict[str, float]] = field(default_factory=dict)
    goals: list[Goal] = field(default_factory=list)
    table: list[dict[str, Any]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    _values: dict[str, list[float]] = field(default_factory=dict)

    def put(self, name: str, values: Sequence[float]) -> None:
        """Take the median of the repeats as the figure and keep the spread beside it."""
        self.figures[name] = rounded(statistics.median(values))
        self.spread[name] = spread_of(values)
        self._values[name] = list(values)

    def ratio(self, name: str, of: str, to: str) -> None:
        """Divide two figures of this run; the spread is that of each repeat by itself."""
        if self.figures.get(to):
            self.figures[name] = rounded(self.figures[of] / self.figures[to])
        ones, others = self._values.get(of, []), self._values.get(to, [])
        if len(ones) == len(others) > 0 and all(others):
            self.spread[name] = spread_of([one / other for one, other in zip(ones, others, strict=True)])

    def goal(self, figure: str, wanted: float, *, at_most: bool = False) -> None:
        if figure in self.figures:
            self.goals.append(Goal(figure, wanted, at_most))

    def as_json(self, place: Place) -> dict[str, Any]:
        goals = [
            {
                "figure": goal.figure,
                "value": self.figures[goal.figure],
                "wanted": goal.wanted,
                "at_most": goal.at_most,
                "reached": goal.reached(self.figures[goal.figure]),
            }
            for goal in self.goals
        ]
        return {
            "scenario": self.scenario, "store": self.store, **self.figures, "spread": self.spread, "goals": goals,
            "table": self.table, "notes": self.notes, "settings": self.settings, **surroundings(place),
        }  # fmt: skip


def surroundings(place: Place) -> dict[str, Any]:
    """Say where and when this was measured."""
    return {
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": {
            "cpu": _cpu_name(),
            "cores": os.cpu_count(),
            "memory_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
            "system": platform.platform(),
            "load_1_min": round(os.getloadavg()[0], 2),
        },
        "versions": {"python": platform.python_version(), "store": place.version, **_packages()},
        "commit": _commit(),
    }


def _packages() -> dict[str, str]:
    found = {}
    for name in ("redrive", "asyncpg", "pydantic", "pgqueuer", "huey"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def _cpu_name() -> str:
    cpus = Path("/proc/cpuinfo")
    if cpus.exists():
        for line in cpus.read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _commit() -> str | None:
    """Name the commit of the source checkout; ``+`` when it has been changed since."""
    if not (ROOT / ".git").exists():
        return None
    try:
        described = subprocess.run(  # noqa: S603 - nothing of it comes from outside
            ["git", "-C", str(ROOT), "describe", "--always", "--dirty=+"],  # noqa: S607 - git of the PATH is meant
            capture_output=True, text=True, check=True, timeout=10,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return None
    return described.stdout.strip()


class Child:
    """One process under measurement."""

    def __init__(self, job: str, **arguments: Any) -> None:
        self._order = {"job": job, **arguments}
        self._process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        """Start it and wait until it is ready to be measured."""
        self._process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", MODULE,
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
            limit=64 * 2**20,
        )  # fmt: skip
        await self._tell(json.dumps(self._order))
        assert self._process.stdout is not None
        if await self._process.stdout.readline() != b"ready\n":
            await self._broken()

    async def go(self) -> None:
        await self._tell("go")

    async def result(self) -> dict[str, Any]:
        """Wait for the end and read what it found."""
        assert self._process is not None
        output, errors = await self._process.communicate()
        lines = output.decode().splitlines()
        if self._process.returncode or not lines:
            raise BenchFailed(f"{self._order['job']} ended with {self._process.returncode}: {errors.decode()[-2000:]}")
        return dict(json.loads(lines[-1]))

    async def end(self) -> None:
        """Stop it if it still runs."""
        if self._process is not None and self._process.returncode is None:
            self._process.kill()
            await self._process.communicate()

    async def _tell(self, line: str) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        self._process.stdin.write(line.encode() + b"\n")
        await self._process.stdin.drain()

    async def _broken(self) -> None:
        assert self._process is not None
        _, errors = await self._process.communicate()
        raise BenchFailed(f"{self._order['job']} did not start: {errors.decode()[-2000:]}")


def samples_of(rows: int, wanted: int) -> int:
    """How often to look among so many rows: few of them are a trial of the benchmark, not a measurement."""
    return wanted if rows >= _TRIAL_BELOW else _TRIAL_SAMPLES


async def together(*children: Child) -> list[dict[str, Any]]:
    """Start all, let them go at once, wait for all."""
    try:
        await asyncio.gather(*(child.start() for child in children))
        for child in children:
            await child.go()
        return await asyncio.gather(*(child.result() for child in children))
    finally:
        for child in children:
            await child.end()


async def alone(job: str, **arguments: Any) -> dict[str, Any]:
    """Run one child."""
    return (await together(Child(job, **arguments)))[0]


async def workers(number: int, *, goal: int, **arguments: Any) -> list[dict[str, Any]]:
    """Run several workers that stop when they have delivered so many together."""
    if number == 1:
        return [await alone("work", goal=goal, **arguments)]
    with counters(number) as slots:
        return await together(*(Child("work", goal=goal, slots=slot, **arguments) for slot in slots))


class Slots:
    """Counters of several processes in one shared file: everybody writes one and reads all."""

    def __init__(self, path: str, mine: int, number: int) -> None:
        with Path(path).open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), 8 * number)
        self._mine = mine
        self._number = number

    def tell(self, count: int) -> int:
        """Write down my count; return everybody's."""
        struct.pack_into("q", self._map, 8 * self._mine, count)
        return sum(struct.unpack_from(f"{self._number}q", self._map))


@contextmanager
def counters(number: int) -> Iterator[list[tuple[str, int, int]]]:
    """Make a file in which so many children can count where the others see it."""
    with tempfile.NamedTemporaryFile(prefix="redrive-bench-") as file:
        file.truncate(8 * number)
        yield [(file.name, mine, number) for mine in range(number)]


def rate_of(results: Sequence[dict[str, Any]], expected: int) -> float:
    """Tell events per second from the first start to the last end; refuse a run that lost or repeated one."""
    count = sum(result["count"] for result in results)
    if count != expected:
        raise BenchFailed(f"{count} events were processed instead of {expected}")
    span = max(result["ended"] for result in results) - min(result["began"] for result in results)
    return float(count / span)


def spread_of(values: Sequence[float]) -> dict[str, float]:
    """Tell the least, the middle and the most."""
    found = {"min": min(values), "median": statistics.median(values), "max": max(values)}
    return {name: rounded(value) for name, value in found.items()}


def rounded(value: float) -> float:
    """Keep four digits that count."""
    return float(f"{value:.4g}") if value < 1_000 else round(value)  # noqa: PLR2004 - rates are whole numbers
