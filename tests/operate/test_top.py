"""`redrive top` says how it goes, in one frame or live, on any terminal."""

from __future__ import annotations

import os
import pty
import re
import select
import signal
import termios
import time
from typing import Any

import pytest

from redrive import Redrive, Release, TerminalHandlerError
from redrive.operate.pulse import pulse
from tests import warm
from tests.operate.helpers import Seeds, environment, in_app, redrive

CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


@pytest.mark.req("W10")
def test_one_frame_says_what_an_operator_asks_first(seeds: Seeds) -> None:
    shown = redrive("top", "--once", "--url", seeds.url, env={"COLUMNS": "120"})

    assert shown.code == 0
    assert "No worker is running, and events wait; a cause of dead letters needs a person." in shown.out
    assert "2 waiting" in shown.out
    assert "1 dead letter " in shown.out
    assert re.search(r"COMING\nin 60 min: 1 retry, 1 first", shown.out)
    assert "TerminalHandlerError: no such [bold]product[/bold] \\x1b[31m" in shown.out
    assert "\x1b" not in shown.out


def test_an_empty_database_is_well(sqlite_url: str) -> None:
    in_app(sqlite_url, pulse)

    shown = redrive("top", "--once", "--url", sqlite_url)

    assert shown.out.startswith("● All is well.\n")
    assert "none is running" in shown.out


@pytest.mark.parametrize("columns", ["30", "60", "200"])
def test_a_frame_fits_its_terminal(seeds: Seeds, columns: str) -> None:
    shown = redrive("top", "--once", "--url", seeds.url, env={"COLUMNS": columns})

    assert max(len(line.rstrip()) for line in shown.out.splitlines()) <= int(columns)


def test_a_database_that_is_not_there_is_an_error(tmp_path: Any) -> None:
    shown = redrive("top", "--once", "--url", f"sqlite:///{tmp_path}/none.db")

    assert shown.code == 1
    assert "redrive migrate" in shown.err


def test_without_a_terminal_it_shows_one_frame(seeds: Seeds) -> None:
    assert "WORKERS" in redrive("top", "--url", seeds.url).out


@pytest.mark.req("W10")
def test_backlog_dependencies_and_redrives_are_seen(store_url: str) -> None:
    async def job(app: Redrive) -> list[Any]:
        @app.handler("order.bad")
        async def refuse(order: int) -> None:
            raise TerminalHandlerError("never")

        @app.handler("order.sent", needs=["carrier"])
        async def send(order: int) -> None: ...

        await app.worker().drain()
        await app.open_dependency("carrier", by="ada", reason="they move house")
        for number in range(3):
            await app.publish("order.bad", number)
            await app.publish("order.sent", number)
        await app.worker().drain()
        before = await pulse(app)
        plan = await app.plan("type:order.bad", by="ada")
        await app.start(plan.redrive.token, by="ada", reason="try", release=Release(ramp=(1,)))
        await app.worker().drain()
        await app.publish("order.bad", 9)
        await app.publish("mail.sent", 9, queue="mail")
        return [before, await pulse(app, before)]

    before, after = in_app(store_url, job)
    shown = redrive("top", "--once", "--url", store_url, env={"COLUMNS": "120"}).out

    assert (before.dead, before.blocked, before.dead_rate) == (3, 3, None)
    assert after.dead_rate > 0  # the one of the redrive failed again
    assert [(each.type, each.queue, each.due) for each in after.backlog] == [
        ("order.bad", "default", 1), ("mail.sent", "mail", 1),
    ]  # fmt: skip
    assert "carrier is down" in after.sentence
    assert "a redrive has halted" in after.sentence
    assert re.search(r"mail.sent +mail +1", shown)
    assert re.search(r"carrier +open +3 .*they move house", shown)
    assert re.search(r"halted +1/3", shown)


def test_a_cause_that_somebody_muted_needs_nobody(sqlite_seeds: Seeds) -> None:
    (group,) = redrive("groups", "ls", "--url", sqlite_seeds.url, "-o", "json").json
    muted = redrive("groups", "mute", group["short"], "1d", "--url", sqlite_seeds.url)

    assert muted.code == 0, muted.err
    assert "needs a person" not in redrive("top", "--once", "--url", sqlite_seeds.url).out


def live(url: str, press: bytes | None, *, columns: int = 80) -> tuple[int, str]:
    """Run it on a terminal, wait for its second frame, then press a key or send Ctrl-C."""
    screen, plug = pty.openpty()
    termios.tcsetwinsize(plug, (30, columns))
    process = warm.python(
        ["-m", "redrive.operate.cli", "top", "--url", url],
        env=environment() | {"TERM": "xterm", "COLUMNS": str(columns)},
        stdin=plug, stdout=plug, stderr=plug,
    )  # fmt: skip
    os.close(plug)
    said, end = b"", time.monotonic() + 30
    try:
        while said.count(b"WORKERS") < 2 and time.monotonic() < end:
            if select.select([screen], [], [], 0.1)[0]:
                said += os.read(screen, 65_536)
        if press is None:
            process.send_signal(signal.SIGINT)
        else:
            os.write(screen, press)
        while process.poll() is None and time.monotonic() < end:
            if select.select([screen], [], [], 0.05)[0]:
                try:
                    said += os.read(screen, 65_536)
                except OSError:  # the other end is closed
                    break
        process.wait(10)
    finally:
        process.kill()
        process.wait()
        os.close(screen)
    return process.returncode, said.decode()


@pytest.mark.parametrize("press", [b"q", None], ids=["q", "ctrl-c"])
def test_it_refreshes_until_somebody_leaves(sqlite_seeds: Seeds, press: bytes | None) -> None:
    code, said = live(sqlite_seeds.url, press)

    assert code == 0
    assert said.count("WORKERS") >= 2
    assert "Traceback" not in said
    assert "\x1b[?1049l" in said  # the screen is what it was before
    assert not re.search(r"\x1b\[[0-9;]*3[0-9]m", said), "NO_COLOR is set"
