"""Follow a page of the documentation literally: run its code, type its commands, compare what they say.

    python tests/docs/follow.py docs/tutorial.md [heading]      in an empty folder, with `redrive` on the PATH

    ```python     one session a page, `await` allowed; if its first line is `# name.py`, it is written to that file
    ```console    `$ command`, then what it prints; a final `^C` interrupts it once that has appeared;
                  `$ command &` runs until `$ kill %1` or the end of the page
    ```sql        run on DATABASE_URL
    ```text       directly after python that prints: what it prints

In expected output `…` stands for anything, and times, spans and counts of seconds for others like them. An id, a group
or a token stands for whatever appeared in its place first; later commands get the real one. A command that only looks
is repeated until it shows what the page says: a worker may need a moment.
"""

from __future__ import annotations

import ast
import asyncio
import contextlib
import fcntl
import inspect
import io
import os
import pty
import re
import select
import shlex
import signal
import subprocess
import sys
import tempfile
import termios
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[2]))
from tests import warm

PLAIN = re.compile(r"""redrive (?:[^|;&<>$`(){}*?~\\#'"!]|'[^']*'|"[^"$`\\!]*")*""")  # needs no shell
PATIENCE_SECONDS = 60.0
LOOKING_SECONDS = 30.0
LOOKING = re.compile(r"redrive (\w+ )?(ls|show|timeline|report)\b|psql .*\"select [^(]* from ")
INSTALLING = ("python -m venv", ". .venv", "pip install")  # done by whoever runs this
CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\r")
SPINNER = re.compile(r"^[\u2800-\u28ff] .*\n?", re.MULTILINE)  # drawn and erased again
FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
FILE = re.compile(r"# ([\w/]+\.py)\n")
HEADING = re.compile(r"^## (.*)$", re.MULTILINE)
CUT = 13  # lists cut ids to this
SHORT = 8  # and groups to this
ID = re.compile(r"\b01[0-9a-f]{6}-[0-9a-f]{4}(?:-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12})?\b")
MIXED = r"(?<![\w-])(?=[a-f]*[0-9])(?=[0-9]*[a-f])"  # neither a number nor a word, nor a part of an id
HEX = re.compile(rf"{MIXED}(?:[0-9a-f]{{16}}|[0-9a-f]{{12}}|[0-9a-f]{{8}})(?![\w-])")  # a group, a token's digest
LIKE = [  # what differs from run to run, and what it looks like
    (re.compile(r"\b\d+(?:\.\d+)? \w+ ago\b"), r"(?:[\d.]+ \w+ ago|now)"),
    (re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:\.\d+)?(?:Z|\+00)?"), r"\d{4}-\d\d-\d\d[T ][\d:.]+(?:Z|\+00)?"),
    (re.compile(r"\b\d\d:\d\d:\d\d(?:\.\d+)?"), r"\d\d:\d\d:\d\d(?:\.\d+)?"),
    (re.compile(r"\b\d+(?:\.\d+)? ?(?:ms|s|m)\b"), r"[\d.]+ ?(?:ms|s|m)"),
]


class Astray(Exception):
    """The page and the program do not agree."""


@dataclass(slots=True)
class Session:
    """What is remembered from block to block."""

    names: dict[str, Any] = field(default_factory=lambda: {"__name__": "__page__"})
    ids: dict[str, str] = field(default_factory=dict)
    printed: str = ""
    jobs: list[subprocess.Popen[bytes]] = field(default_factory=list)

    # Python

    async def python(self, text: str) -> None:
        if match := FILE.match(text):
            await asyncio.to_thread(Path(match[1]).write_text, text, encoding="utf-8")
            return
        code = compile(text, "<page>", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
        output = io.StringIO()
        with contextlib.redirect_stdout(output):
            running = eval(code, self.names)
            if inspect.isawaitable(running):
                await running
        self.printed = output.getvalue()

    async def text(self, expected: str) -> None:
        if self.printed:
            self.compare(expected, self.printed)

    # SQL

    async def sql(self, text: str) -> None:
        import psycopg

        with psycopg.connect(os.environ["DATABASE_URL"], autocommit=True) as connection:
            for statement in filter(None, (part.strip() for part in self.with_real_ids(text).split(";\n"))):
                connection.execute(statement.removesuffix(";").encode())

    # Commands

    async def console(self, text: str) -> None:
        for command, expected in commands(text):
            real = self.with_real_ids(command)
            if expected.endswith("^C\n"):
                said = await asyncio.to_thread(self.until_interrupted, real, expected.removesuffix("^C\n"))
                self.compare(expected.removesuffix("^C\n"), said)
            elif real.endswith("&"):
                self.jobs.append(await asyncio.to_thread(in_background, real.removesuffix("&")))
            elif real.startswith("kill %"):
                await asyncio.to_thread(end, self.jobs.pop(int(real.removeprefix("kill %")) - 1))
            else:
                self.compare(expected, await asyncio.to_thread(self.until_it_fits, real, expected))

    def until_it_fits(self, command: str, expected: str) -> str:
        """Run a command; look again for a while if it only looks."""
        until = time.monotonic() + (LOOKING_SECONDS if LOOKING.match(command) else 0.0)
        while not self.fits(expected, said := run(command)) and time.monotonic() < until:
            time.sleep(0.2)
        return said

    async def leave(self) -> None:
        for job in self.jobs:
            await asyncio.to_thread(end, job)

    def until_interrupted(self, command: str, expected: str) -> str:
        """Run a command until what it should say has appeared, then press Ctrl-C."""
        with on_terminal(f"exec {command}") as (process, screen):
            said, until = "", time.monotonic() + PATIENCE_SECONDS
            while process.poll() is None and time.monotonic() < until and not self.fits(expected, said):
                said += read(screen, 0.05)
            process.send_signal(signal.SIGINT)
            said += rest(process, screen)
        if process.returncode not in (0, 130):
            raise Astray(f"$ {command}\nended with {process.returncode} and said:\n{said}")
        return said

    # Comparing

    def with_real_ids(self, text: str) -> str:
        for kind in (ID, HEX):
            text = kind.sub(lambda match: self.real_id(match[0]) or match[0], text)
        return text

    def real_id(self, written: str) -> str:
        """Return as much as is known of the id for which this one stands."""
        beginning = written[: CUT if "-" in written else SHORT]
        known = [real[: len(written)] for name, real in self.ids.items() if name.startswith(beginning)]
        return max(known, key=len, default="")

    def compare(self, expected: str, said: str) -> None:
        match = self.match(expected, said)
        if match is None:
            raise Astray(f"expected:\n{expected}\nbut it said:\n{said}")
        for name, real in match.groupdict().items():
            self.ids[name.removeprefix("id_").replace("_", "-")] = real

    def fits(self, expected: str, said: str) -> bool:
        return self.match(expected, said) is not None

    def match(self, expected: str, said: str) -> re.Match[str] | None:
        """Find the expected lines in order; other lines may stand between them only where `…` stands alone.

        Where a line is broken depends on the width of the terminal, and does not count.
        """
        pattern, seen = "", set[str]()
        for line in expected.splitlines():
            if line.strip() == "…":
                pattern += r"(?:.*\n)*?"
            elif line.strip():
                pattern += self.line(" ".join(line.split()), seen).replace(r"\ ", r"\s+") + r"\s+"
        lines = SPINNER.sub("", said).splitlines()
        plain = "\n".join(" ".join(line.split()) for line in lines if line.strip()) + "\n"
        return re.match(pattern + r"\s*\Z", plain)

    def line(self, text: str, seen: set[str]) -> str:
        pieces: list[tuple[re.Pattern[str], Any]] = [
            (kind, lambda match: self.id_pattern(match[0], seen)) for kind in (ID, HEX)
        ]
        pieces += [(like, lambda _match, pattern=pattern: pattern) for like, pattern in LIKE]
        pieces.append((re.compile("…"), lambda _match: ".*"))
        return translated(text, pieces)

    def id_pattern(self, written: str, seen: set[str]) -> str:
        real = self.real_id(written)
        name = f"id_{written.replace('-', '_')}"
        if name in seen:
            return f"(?P={name})"
        seen.add(name)
        return f"(?P<{name}>{re.escape(real)}[0-9a-f-]{{{len(written) - len(real)}}})"


def translated(text: str, pieces: list[tuple[re.Pattern[str], Any]]) -> str:
    """Turn the first kind of piece into its pattern, and what is between by the other kinds; the rest is literal."""
    if not pieces:
        return re.escape(text)
    (kind, write), rest = pieces[0], pieces[1:]
    result, place = "", 0
    for match in kind.finditer(text):
        result += translated(text[place : match.start()], rest) + write(match)
        place = match.end()
    return result + translated(text[place:], rest)


def commands(text: str) -> Iterator[tuple[str, str]]:
    """Cut a transcript into commands and what each prints; a backslash continues a command."""
    for part in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]:
        command, _, expected = part.partition("\n")
        while command.endswith("\\"):
            more, _, expected = expected.partition("\n")
            command = command[:-1] + more.strip()
        yield command, expected


def run(command: str) -> str:
    if command.startswith(INSTALLING):
        return ""
    with on_terminal(command, may_be_warm=True) as (process, screen):
        return rest(process, screen)


def in_background(command: str) -> subprocess.Popen[bytes]:
    nothing = subprocess.DEVNULL
    return subprocess.Popen(
        ["bash", "-c", f"exec {command}"], stdin=nothing, stdout=nothing, stderr=nothing, start_new_session=True
    )


def end(job: subprocess.Popen[bytes]) -> None:
    job.terminate()
    try:
        job.wait(PATIENCE_SECONDS)
    except subprocess.TimeoutExpired:
        job.kill()
        raise


@contextlib.contextmanager
def on_terminal(command: str, *, may_be_warm: bool = False) -> Iterator[tuple[Any, int]]:
    """Run a command as somebody at a terminal would: output may look different elsewhere."""
    screen, plug = pty.openpty()
    termios.tcsetwinsize(plug, (40, 130))
    try:
        given: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": plug, "stderr": plug}
        if may_be_warm and warm.DOOR in os.environ and PLAIN.fullmatch(command):
            process = warm.python(["-m", "redrive.operate.cli", *shlex.split(command)[1:]], **given)
        else:
            process = subprocess.Popen(["bash", "-c", command], **given, start_new_session=True)
        os.close(plug)
        try:
            yield process, screen
        finally:
            if process.poll() is None:
                process.kill()
            process.wait()
    finally:
        os.close(screen)


def rest(process: subprocess.Popen[bytes], screen: int) -> str:
    said, until = "", time.monotonic() + PATIENCE_SECONDS
    while process.poll() is None and time.monotonic() < until:
        said += read(screen, 0.05)
    said += read(screen, 0.05)
    if process.poll() is None:
        raise Astray(f"it does not end, and said:\n{said}")
    return said


def read(screen: int, seconds: float) -> str:
    """Read what has appeared; on Linux a terminal whose program has ended answers with an error."""
    said = b""
    with contextlib.suppress(OSError):
        while select.select([screen], [], [], seconds)[0]:
            piece = os.read(screen, 65_536)
            if not piece:
                break
            said += piece
    return CONTROL.sub("", said.decode().replace("\r\n", "\n"))


async def follow(page: str, text: str, section: str = "") -> None:
    """Do what the page says, or only what stands under one of its headings of the second level."""
    session = Session()
    try:
        await follow_blocks(session, page, text, section)
    finally:
        await session.leave()


async def follow_blocks(session: Session, page: str, text: str, section: str) -> None:
    place = 0
    for block in FENCE.finditer(text):
        if text[place : block.start()].strip():
            session.printed = ""  # a paragraph between: what follows is something else
        place = block.end()
        if section and section != HEADING.findall(text, 0, block.start())[-1:][0]:
            continue
        step = getattr(session, block[1], None) if block[1] in ("python", "text", "sql", "console") else None
        if step is None:
            continue
        try:
            await step(block[2])
        except BaseException as error:
            number = text.count("\n", 0, block.start()) + 1
            error.add_note(f"{page}, line {number}:\n{block[2]}")
            raise


@contextlib.contextmanager
def alone(page: str) -> Iterator[None]:
    """Wait for whoever follows the same page on this machine, from another checkout: it names its ports."""
    with (Path(tempfile.gettempdir()) / f"redrive-page-{page}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


if __name__ == "__main__":
    sys.path.insert(0, str(Path.cwd()))
    with alone(Path(sys.argv[1]).stem):
        asyncio.run(follow(sys.argv[1], Path(sys.argv[1]).read_text(encoding="utf-8"), *sys.argv[2:]))
