"""Trouble: whatever is wrong is said in one sentence with what to do, and no traceback reaches anybody.

Any arguments at all are in tests/lab/test_cli.py.
"""

from __future__ import annotations

import io
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from redrive import Redrive
from redrive.operate.cli import outcome
from tests import leaks
from tests.operate.helpers import Seeds, ended, environment, in_app, redrive, seed, start


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("mysql://host/db", "is not a database redrive knows"),
        ("redrive.db", "is not a database redrive knows"),
        ("sqlite://", "names no file"),
        ("postgresql://[bad", "is not a database URL"),
        ("sqlite:///no/such/folder/redrive.db", "does not exist"),
        ("sqlite:///:memory:", "has no redrive tables"),
        ("postgresql://nobody@127.0.0.1:1/none", "does not answer"),
        ("postgresql://nobody@127.0.0.1:notaport/none", "not a database URL"),
    ],
)
def test_a_url_that_leads_nowhere_is_said_in_one_sentence(url: str, said: str) -> None:
    result = redrive("events", "ls", "-u", url)

    assert result.code == 1
    assert said in result.err
    assert result.err.startswith("redrive: ")
    assert len(result.err.splitlines()) == 1


def test_a_password_is_not_shown() -> None:
    for command in (["doctor"], ["events", "ls"], ["migrate"]):
        result = redrive(*command, "-u", "postgresql://nobody:sesame@127.0.0.1:1/none")
        assert result.code == 1
        assert "sesame" not in result.out + result.err


async def _from_the_future(app: Redrive) -> None:
    table = "redrive_schema_version" if app.store.name == "sqlite" else "redrive.schema_version"
    at = ", applied_at" if app.store.name == "sqlite" else ""
    async with app.store.transaction() as tx:
        values = f"999, 'future', 999{', 0' if at else ''}"
        await tx.execute(f"insert into {table} (version, name, needs{at}) values ({values})")


@pytest.mark.parametrize("command", [["events", "ls"], ["publish", "a.b", "{}"], ["migrate"], ["doctor"]])
def test_a_newer_schema_is_left_alone(store_url: str, command: list[str]) -> None:
    in_app(store_url, _from_the_future)

    result = redrive(*command, "-u", store_url)

    assert result.code == 1
    assert "999" in result.out + result.err
    assert "upgrade redrive" in result.out + result.err


def test_a_file_that_is_no_database_is_said_so(empty_folder: Path) -> None:
    (empty_folder / "notes.db").write_text("these are my notes, and no database at all\n" * 100)

    for command in (["events", "ls"], ["publish", "a.b", "{}"], ["migrate"]):
        result = redrive(*command, "-u", "sqlite:///notes.db")
        assert result.code == 1, command
        assert "not an SQLite database" in result.err


@contextmanager
def _without_privileges() -> Iterator[None]:
    """Root may write everything: do without for a moment."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(65_534)
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """Give the test a folder that everybody can reach."""
    folder = Path(tempfile.mkdtemp(prefix="redrive-test-"))
    folder.chmod(0o755)
    yield folder
    folder.chmod(0o755)
    shutil.rmtree(folder)


def test_a_file_that_cannot_be_written_is_said_so(open_folder: Path) -> None:
    file = open_folder / "redrive.db"
    seeds = seed(f"sqlite:///{file}")
    file.chmod(0o444)
    open_folder.chmod(0o555)

    with _without_privileges():
        results = [
            redrive("publish", "order.paid", "{}", "-u", seeds.url),
            redrive("replay", seeds.dead, "-r", "x", "-u", seeds.url),
            redrive("migrate", "-u", f"sqlite:///{open_folder / 'new.db'}"),
        ]

    for result in results:
        assert result.code == 1
        assert "check" in result.err
        assert len(result.err.splitlines()) == 1


def test_a_folder_in_place_of_a_file_is_said_so(empty_folder: Path) -> None:
    assert redrive("events", "ls", "-u", f"sqlite:///{empty_folder}").code == 1


@pytest.mark.parametrize(
    ("name", "source", "code", "said"),
    [
        ("shop", None, 2, "write module:attribute"),
        (":app", None, 2, "write module:attribute"),
        ("no_such_module_here:app", None, 1, "there is no module 'no_such_module_here'"),
        ("shop_a:app", "import no_such_library", 1, "No module named 'no_such_library'"),
        ("shop_b:app", "1 / 0", 1, "importing shop_b failed: ZeroDivisionError"),
        ("shop_c:app", "def f(:", 1, "importing shop_c failed: SyntaxError"),
        ("shop_d:app", "import sys; sys.exit(3)", 1, "importing shop_d failed: SystemExit"),
        ("shop_e:app", "from redrive import Redrive\nshop = Redrive()", 1, "shop_e has no 'app': it has shop"),
        ("shop_f:app", "app = 7", 1, "is a int, not a Redrive"),
        ("shop_g:app", "from redrive import Redrive\napp = Redrive()", 1, "has no handlers"),
        ("shop_h:app", "from redrive import Redrive\napp = Redrive('ftp://x')", 1, "is not a database redrive knows"),
    ],
)
def test_an_app_that_cannot_be_used_is_said_so(
    empty_folder: Path, monkeypatch: pytest.MonkeyPatch, name: str, source: str | None, code: int, said: str
) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])
    if source is not None:
        (empty_folder / f"{name.partition(':')[0]}.py").write_text(source)

    for command in (["worker", name], ["up", name], ["publish", "a.b", "--app", name]):
        if "handlers" in said and command[0] == "publish":
            continue
        result = redrive(*command)
        assert result.code == code, result.err
        assert said in result.err
        assert len(result.err.splitlines()) == 1
    sys.modules.pop(name.partition(":")[0], None)


@pytest.mark.parametrize(
    "arguments",
    [
        ["no-such-command"],
        ["events", "ls", "--no-such-option"],
        ["events", "ls", "--status", "sleepy"],
        ["events", "ls", "--limit", "0"],
        ["events", "ls", "-o", "xml"],
        ["replay"],
        ["purge"],
        ["purge", "--older-than", "yesterday"],
        ["publish"],
        ["publish", "a.b", "{}", "--priority", "urgent"],
        ["publish", "a.b", "{}", "--delay", "soon"],
        ["publish", "a.b", "{}", "-H", "nothing"],
        ["replay", "01", "-r", "x", "--by", " "],
        ["worker", "app:app", "--processes", "0"],
        ["worker", "app:app", "--grace", "a while"],
        ["demo", "--seconds", "0"],
    ],
)
def test_wrong_usage_ends_with_2_and_touches_nothing(empty_folder: Path, arguments: list[str]) -> None:
    result = redrive(*arguments)

    assert result.code == 2
    assert result.err
    assert list(empty_folder.iterdir()) == []


def test_the_url_of_an_app_is_its_own_business(empty_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])
    (empty_folder / "shop_u.py").write_text(
        "from redrive import Redrive\napp = Redrive()\n@app.handler('a')\nasync def a(p): ...\n"
    )

    result = redrive("-u", "sqlite:///other.db", "worker", "shop_u:app", "--drain")

    assert result.code == 2
    assert "names its own database" in result.err
    sys.modules.pop("shop_u", None)


def test_the_unexpected_is_one_line_and_its_traceback_is_for_those_who_ask(
    sqlite_seeds: Seeds, monkeypatch: pytest.MonkeyPatch
) -> None:
    connection = sqlite3.connect(sqlite_seeds.url.removeprefix("sqlite:///"))
    connection.execute("insert into redrive_policy_override values ('order.*', 'no json', 'ann', 0, 'by hand')")
    connection.commit()
    connection.close()

    result = redrive("policy", "ls", "-u", sqlite_seeds.url)

    assert result.code == 1
    assert result.err.startswith("redrive: unexpected JSONDecodeError")
    assert "REDRIVE_DEBUG=1" in result.err
    assert len(result.err.splitlines()) == 1
    process = start("policy", "ls", "-u", sqlite_seeds.url, cwd=Path.cwd(), env=environment(REDRIVE_DEBUG="1"))
    assert "Traceback" in process.communicate(timeout=30)[1]


# --- processes ---


async def _fill(app: Redrive) -> None:
    await app.publish_many([("order.paid", {"text": "x" * 1_000}) for _ in range(300)])


def test_a_reader_that_leaves_is_no_error(sqlite_url: str, empty_folder: Path) -> None:
    in_app(sqlite_url, _fill)

    for form in ("jsonl", "json", "table"):
        process = start("events", "ls", "-n", "300", "-o", form, "-u", sqlite_url, cwd=empty_folder)
        assert process.stdout is not None
        process.stdout.readline()
        process.stdout.close()
        assert process.stderr is not None
        err = process.stderr.read()
        process.stderr.close()

        assert (process.wait(30), err) in ((141, ""), (0, "")), form  # a table fits into the pipe


def test_arguments_and_terminals_in_any_encoding(empty_folder: Path) -> None:
    process = subprocess.Popen(
        [sys.executable.encode(), b"-m", b"redrive.operate.cli", b"publish", b"order.\xff", b'"\xfe"'],
        cwd=empty_folder,
        env=environment(PYTHONIOENCODING="ascii"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )

    result = ended(process)

    assert result.code == 4
    assert "lone surrogate" in result.err
    ascii_only = start("demo", "--help", cwd=empty_folder, env=environment(PYTHONIOENCODING="ascii"))
    assert ended(ascii_only).code == 0


def test_an_interrupt_ends_with_130_and_without_a_traceback(empty_folder: Path) -> None:
    process = start("demo", "--seconds", "60", "--file", "shop.db", cwd=empty_folder)
    assert process.stdout is not None
    process.stdout.readline()
    time.sleep(0.5)

    process.send_signal(signal.SIGINT)
    result = ended(process)

    assert result.code == 130
    assert result.err == ""


def test_a_reader_who_left_costs_no_descriptor_where_standard_output_is_no_file(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before = leaks.descriptors()
    monkeypatch.setattr(sys, "stdout", io.StringIO())

    outcome._close_the_pipe()

    assert leaks.descriptors() == before
