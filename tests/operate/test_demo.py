"""The demo keeps what it promises, and every number in it comes from the store."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import termios
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import httpx
import pytest

from redrive.operate.demo.crew import Crew
from redrive.operate.demo.screen import draw
from redrive.operate.demo.shop import World
from redrive.operate.demo.stage import Stage
from tests import warm
from tests.operate.helpers import ended, environment, redrive, start


@contextmanager
def on_terminal(*arguments: str, cwd: Path) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """Run a command on a terminal of 80 by 24."""
    screen, tty = pty.openpty()
    fcntl.ioctl(tty, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    command = ["-m", "redrive.operate.cli", *arguments]
    process = warm.python(command, stdin=tty, stdout=tty, stderr=tty, cwd=cwd, env=environment(TERM="xterm"))
    os.close(tty)
    try:
        yield process, screen
    finally:
        with suppress(ProcessLookupError):
            process.kill()
        process.wait()
        os.close(screen)


def until_said(screen: int, wanted: str) -> str:
    """Read what is shown until it has been said."""
    said, until = "", time.monotonic() + 60
    while wanted not in said and time.monotonic() < until:
        if select.select([screen], [], [], 0.1)[0]:
            try:
                said += os.read(screen, 65_536).decode("utf-8", "replace")
            except OSError:  # the last one has left the terminal
                break
    assert wanted in said
    return said


@pytest.mark.lab_short
@pytest.mark.req("O5", "O8")
def test_the_demo_adds_up(empty_folder: Path) -> None:
    result = ended(start("demo", "--headless", "--seconds", "10", "--file", "shop.db", cwd=empty_folder), 60)

    seen = result.json
    assert (result.code, result.err, seen["holds"]) == (0, "", True)
    assert all(seen["invariants"].values())
    assert seen["published"] == seen["delivered"] + seen["dead_letters"] + seen["pending"] == 136
    assert seen["effects"] == seen["distinct_keys"]
    assert (seen["replayed"], seen["recovered_by_replay"], seen["dead_letters"]) == (7, 6, 1)
    assert (seen["redrives"], seen["redrives_halted"], seen["spared"]) == (2, 1, 3)
    assert seen["duplicates"] == 8
    assert seen["recovered_by_retry"] > 5
    assert seen["waited"] > 24
    letters = redrive("dlq", "ls", "-o", "json", "-u", seen["url"]).json
    assert [letter["id"] for letter in letters] == [seen["dead_letter"]]
    steps = redrive("events", "timeline", seen["recovered"], "-o", "json", "-u", seen["url"]).json["steps"]
    assert [step["kind"] for step in steps] == ["published", "dead-lettered", "replayed", "delivered"]
    assert redrive("deps", "show", "carrier-api", "-o", "json", "-u", seen["url"]).json["state"] == "closed"
    assert redrive("events", "ls", "-s", "blocked", "-o", "json", "-u", seen["url"]).json == []
    done, halted = redrive("redrives", "ls", "-o", "json", "-u", seen["url"]).json
    assert (halted["state"], halted["delivered"], halted["failed_same"]) == ("aborted", 2, 1)
    assert (done["state"], done["delivered"], done["failed_same"]) == ("done", 4, 0)
    causes = redrive("groups", "ls", "--all", "-o", "json", "-u", seen["url"]).json
    assert {cause["target"]: cause["state"] for cause in causes} == {
        "order.paid": "new",
        "invoice.requested": "resolved",
    }
    assert redrive("audit", "verify", "-o", "json", "-u", seen["url"]).json["entries"] == seen["trail_entries"]


def test_without_a_terminal_the_demo_tells_its_story_in_lines(empty_folder: Path) -> None:
    result = ended(start("demo", "--seconds", "8", "--file", "shop.db", cwd=empty_folder), 60)

    assert (result.code, result.err) == (0, "")
    for said in (
        "the bank is slow to confirm payments",
        "delivered at try",
        "the carrier stops answering",
        "circuit opens: ",
        "probe succeeds: the circuit closes",
        "dead letter",
        "6 dead, one cause",
        "redrive: stage 1 of 2 went well",
        "redrive halts: the same failure came back 1 of 2 times in stage 2",
        "the other 3 are not touched",
        "redrive done: 4 of 4 delivered",
        "batch marketplace: every order was tried",
        "batch marketplace: nothing can move any more, 24 of 24 delivered",
        "delivered after the replay",
    ):
        assert said in result.out
    assert "11 checks hold" in result.out
    assert "redrive dlq ls" in result.out
    assert "\x1b" not in result.out


@pytest.mark.lab_short
async def test_an_outage_is_waited_out_and_those_who_waited_come_back_in_parts(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("redrive.operate.demo.stage._TO_NOWHERE", 20)  # one of those who wait, as on a slow machine
    stage = Stage(sqlite_url, 8.0)

    summary = await stage.play()

    told = [line.text for line in stage.feed]
    opens, fails, succeeds = (
        next(place for place, text in enumerate(told) if text.startswith(said))
        for said in ("circuit opens: ", "probe fails: ", "probe succeeds: ")
    )
    back = [text.split() for text in told if text.startswith("circuit closed: ")]
    assert opens < fails < succeeds
    assert len(back) > 2
    assert sum(int(words[2]) for words in back) > 24
    assert back[-1][-2:] == ["0", "wait"]
    assert summary.invariants["the outage made no dead letter"]
    assert summary.invariants["all who waited for the carrier were delivered or rejected by it, with one attempt spent"]


def test_on_a_terminal_the_console_is_beside_it_for_one_browser_of_this_machine(empty_folder: Path) -> None:
    with on_terminal("demo", "--seconds", "6", "--file", "shop.db", cwd=empty_folder) as (process, screen):
        said = until_said(screen, "Ctrl-C ends it.")
        (link,) = re.findall(r"through it: (http://127\.0\.0\.1:\d+/demo/\S+)", said)
        address = link.partition("/demo/")[0]
        with httpx.Client() as elsewhere, httpx.Client() as browser:
            rebound = elsewhere.get(link, headers={"Host": "evil.example"})
            closed = elsewhere.get(address, headers={"Accept": "text/html"})
            let_in = browser.get(link)
            again = elsewhere.get(link)
            back = browser.get(link)
            page = browser.get(address, headers={"Accept": "text/html"})
            foreign = browser.post(f"{address}/tour", data={"verb": "carrier"})
        process.send_signal(signal.SIGINT)
        said += until_said(screen, "✓ stopped")
        assert process.wait(20) == 0

    assert (rebound.status_code, closed.headers["location"], let_in.status_code) == (403, "/login", 200)
    assert (again.status_code, back.headers["location"], page.status_code) == (403, "/", 200)
    assert 'id="tour"' in page.text
    assert foreign.status_code == 403
    assert "httponly" in let_in.headers["set-cookie"].lower()


def test_without_serving_the_demo_ends_by_itself(empty_folder: Path) -> None:
    with on_terminal("demo", "--seconds", "6", "--no-serve", cwd=empty_folder) as (process, screen):
        said = until_said(screen, "nobody changed the record")
        assert process.wait(20) == 0

    assert "http://" not in said


def test_the_demo_takes_no_file_that_exists(empty_folder: Path) -> None:
    (empty_folder / "mine.db").touch()

    assert redrive("demo", "--file", "mine.db").code == 4
    assert redrive("demo", "--file", "no/such/folder.db").code == 1


async def test_who_has_the_app_of_an_earlier_release_in_hand_may_go_on_until_the_shop_closes(sqlite_url: str) -> None:
    crew = Crew(sqlite_url, World(), release=1, pace=0.1)
    await crew.app.open()
    crew.start()
    earlier = crew.app

    await crew.deploy(2)
    await earlier.publish("payment.captured", {"order": 1, "amount": "19.90"})
    await crew.stop()
    await crew.close()  # and nothing of either is left open


@pytest.mark.parametrize(("width", "height"), [(80, 24), (80, 22), (120, 40), (200, 60)])
async def test_the_view_fits_the_terminal(sqlite_url: str, width: int, height: int) -> None:
    from rich.console import Console

    frames: list[str] = []
    stage = Stage(sqlite_url, 3.0)

    def frame() -> None:
        console = Console(width=width, height=height, force_terminal=True, color_system=None, record=True)
        with console.capture() as captured:
            console.print(draw(stage, width, height), height=height)
        frames.append(captured.get())

    stage._on_line = lambda _line: frame()
    await stage.play()  # too short to hold what it promises on a busy machine; other tests ask for that

    assert len(frames) > 50
    for each in frames:
        lines = each.splitlines()
        assert len(lines) <= height
        assert max(map(len, lines)) <= width
    assert any("carrier ● down" in each for each in frames)
    assert any("next retries" in each for each in frames)
    assert any("dead letters" in each for each in frames)
