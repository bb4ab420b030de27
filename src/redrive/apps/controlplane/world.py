"""World: what the control plane controls. A fake, and outside of all transactions as the real one would be.

Three systems: the ``fabric`` announces addresses, ``storage`` keeps volumes, the ``hypervisor`` runs machines. Their
things live in a file of their own, so that they can be destroyed behind the control plane's back, and so that a process
that dies leaves behind what it did. Each system can be told to be

    down       answers nothing                       degraded    works only for callers that take less
    slow       takes its time                        lose        does what it is asked, and the answer is lost
    broken     answers with an error of its own

for every call, or every n-th.
"""

import asyncio
import json
import sqlite3
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, Protocol, TypeVar

from redrive import ConfigurationError, DependencyDegraded, DependencyUnavailable, PrerequisiteMissing, Rejected

FABRIC: Final = "fabric"
STORAGE: Final = "storage"
HYPERVISOR: Final = "hypervisor"
SYSTEMS: Final = (FABRIC, STORAGE, HYPERVISOR)
MODES: Final = ("down", "degraded", "slow", "lose", "broken")
IMAGES: Final = ("debian-13", "ubuntu-24.04")

_SCHEMA: Final = """
create table if not exists thing (
    system text, name text, request text, token integer, facts text, primary key (system, name)) without rowid;
create index if not exists thing_request on thing (system, request);
create table if not exists fault (system text, mode text, every integer, seconds real, primary key (system, mode));
create table if not exists calls (system text primary key, count integer);
create table if not exists deed (number integer primary key, system text, act text, name text, request text);
"""
_BUSY_SECONDS: Final = 30.0

T = TypeVar("T")


class Sleeper(Protocol):
    """What the world needs of a clock."""

    async def sleep(self, seconds: float) -> None: ...


@dataclass(frozen=True, slots=True)
class Thing:
    """Something that is there. ``token``: whose claim it was made by; a later claim has a higher one."""

    name: str
    request: str
    token: int = 0
    facts: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Fault:
    """What is wrong with a system: in every ``every``-th call."""

    system: str
    mode: str
    every: int = 1
    seconds: float = 1.0

    @classmethod
    def parse(cls, text: str) -> "Fault":
        """Read ``storage=down`` or ``hypervisor=lose/20``."""
        system, _, rest = text.partition("=")
        mode, _, every = rest.partition("/")
        if system not in SYSTEMS or mode not in MODES or not (every or "1").isdecimal() or every == "0":
            raise ConfigurationError(
                f"{text!r} is no fault: write SYSTEM=MODE or SYSTEM=MODE/N for every N-th call, with one of "
                f"{', '.join(SYSTEMS)} and one of {', '.join(MODES)}"
            )
        return cls(system, mode, int(every or "1"))


class World:
    """The things outside, in the file at ``path``. Without a clock nothing is slow."""

    def __init__(self, path: str, clock: Sleeper | None = None) -> None:
        self._path = path
        self._clock = clock
        self._made = False

    # What the services ask for

    async def put(self, system: str, thing: Thing, *, reduced: bool = False) -> None:
        """Make a thing, or bring it into the given shape; ``reduced``: the caller is content with less."""
        await self._call(system, lambda file: _put(file, system, thing), reduced=reduced)

    async def drop(self, system: str, name: str, request: str) -> None:
        """Destroy a thing if it is there, and of this request."""
        job = partial(_drop, system=system, condition="name = ? and request = ?", values=(name, request))
        await self._call(system, job, reduced=True)

    async def drop_all(self, system: str, request: str) -> None:
        """Destroy whatever is there of a request."""
        job = partial(_drop, system=system, condition="request = ?", values=(request,))
        await self._call(system, job, reduced=True)

    async def things(self, system: str) -> list[Thing]:
        """List what is there."""
        return await self._call(system, lambda file: _things(file, "system = ?", system), reduced=True)

    async def find(self, system: str, name: str) -> Thing | None:
        """Look at one thing."""
        found = await self._call(
            system, lambda file: _things(file, "system = ? and name = ?", system, name), reduced=True
        )
        return found[0] if found else None

    # What happens to it from outside

    async def tell(self, *faults: Fault) -> None:
        """Let something be wrong."""

        def write(file: sqlite3.Connection) -> None:
            values = [(each.system, each.mode, each.every, each.seconds) for each in faults]
            file.executemany("insert or replace into fault values (?, ?, ?, ?)", values)

        await self._do(write)

    async def heal(self, *systems: str) -> None:
        """Let nothing be wrong any more."""

        def write(file: sqlite3.Connection) -> None:
            file.executemany("delete from fault where system = ?", [(each,) for each in systems or SYSTEMS])

        await self._do(write)

    async def destroy(self, system: str, name: str) -> None:
        """Destroy something behind the control plane's back."""
        await self._do(partial(_drop, system=system, condition="name = ?", values=(name,)))

    async def conjure(self, system: str, thing: Thing) -> None:
        """Make something behind its back."""
        await self._do(lambda file: _put(file, system, thing))

    async def seen(self, system: str) -> list[Thing]:
        """List what is there, whatever is wrong."""
        return await self._do(lambda file: _things(file, "system = ?", system))

    async def deeds(self, system: str | None = None) -> list[tuple[str, str, str]]:
        """List what was done, in order: act, name, request."""
        chosen = "select act, name, request from deed where ? in (system, '') order by number"
        return await self._do(lambda file: file.execute(chosen, (system or "",)).fetchall())

    # How

    async def _call(self, system: str, job: Callable[[sqlite3.Connection], T], *, reduced: bool = False) -> T:
        def attempt(file: sqlite3.Connection) -> tuple[dict[str, float], T | None]:
            wrong = _what_is_wrong(file, system)
            return wrong, None if wrong else job(file)

        wrong, answer = await self._do(attempt)
        if not wrong:
            return answer  # type: ignore[return-value]
        if "slow" in wrong and self._clock is not None:
            await self._clock.sleep(wrong["slow"])
        if "down" in wrong:
            raise DependencyUnavailable(system, "does not answer")
        if "broken" in wrong:
            raise RuntimeError(f"{system}: internal error")
        if "degraded" in wrong and not reduced:
            raise DependencyDegraded(system, "has lost a part of itself")
        late = await self._do(job)
        if "lose" in wrong:
            raise ConnectionResetError(f"{system}: connection reset before the answer")
        return late

    async def _do(self, job: Callable[[sqlite3.Connection], T]) -> T:
        # A connection for each call: whoever is killed leaves nothing open, and whoever ends nothing to close.
        return await asyncio.to_thread(self._on_file, job)

    def _on_file(self, job: Callable[[sqlite3.Connection], T]) -> T:
        with closing(sqlite3.connect(self._path, timeout=_BUSY_SECONDS, isolation_level=None)) as file:
            if not self._made:
                file.execute("pragma journal_mode = wal")
                file.executescript(_SCHEMA)
                self._made = True
            file.execute("pragma synchronous = off")  # it must survive a killed process, not a power cut
            file.execute("begin immediate")
            try:
                answer = job(file)
            except BaseException:
                file.execute("rollback")
                raise
            file.execute("commit")
            return answer


def _what_is_wrong(file: sqlite3.Connection, system: str) -> dict[str, float]:
    """Count the call, and say which faults it meets, with the seconds of each."""
    count = "insert into calls values (?, 1) on conflict do update set count = count + 1 returning count"
    (number,) = file.execute(count, (system,)).fetchone()
    faults = file.execute("select mode, every, seconds from fault where system = ?", (system,)).fetchall()
    return {mode: seconds for mode, every, seconds in faults if number % every == 0}


def _put(file: sqlite3.Connection, system: str, thing: Thing) -> None:
    held = _things(file, "system = ? and name = ?", system, thing.name)
    if held and (held[0].token > thing.token or (held[0].token == thing.token and held[0].request != thing.request)):
        raise PrerequisiteMissing(f"{system}: {thing.name} was claimed by {held[0].request} after this claim")
    if thing.facts.get("image", IMAGES[0]) not in IMAGES:
        raise Rejected(f"{system}: there is no image {thing.facts['image']!r}, only {', '.join(IMAGES)}")
    facts = json.dumps(thing.facts, sort_keys=True)
    values = (system, thing.name, thing.request, thing.token, facts)
    if held != [thing]:
        file.execute("insert or replace into thing values (?, ?, ?, ?, ?)", values)
        _note(file, system, "made", thing)


def _drop(file: sqlite3.Connection, system: str, condition: str, values: Sequence[str]) -> None:
    for thing in _things(file, f"system = ? and {condition}", system, *values):
        file.execute("delete from thing where system = ? and name = ?", (system, thing.name))
        _note(file, system, "destroyed", thing)


def _note(file: sqlite3.Connection, system: str, act: str, thing: Thing) -> None:
    values = (system, act, thing.name, thing.request)
    file.execute("insert into deed (system, act, name, request) values (?, ?, ?, ?)", values)


def _things(file: sqlite3.Connection, condition: str, *values: str) -> list[Thing]:
    rows = file.execute(f"select name, request, token, facts from thing where {condition}", values)
    return [Thing(name, request, token, json.loads(facts)) for name, request, token, facts in rows]
