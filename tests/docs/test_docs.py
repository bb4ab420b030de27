"""The documentation is followed literally, each page in an empty folder."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import psycopg
import pytest

from tests import warm
from tests.kafka_server import KafkaServer

pytestmark = [pytest.mark.timeout(330), pytest.mark.no_tables]
PATIENCE_SECONDS = 300.0  # the longest page takes a minute and a half by itself, and tests run side by side

ROOT = Path(__file__).parent.parent.parent
DOCS = ROOT / "docs"
TO_FOLLOW = re.compile(r"^```(python|console|sql)$", re.MULTILINE)
PAGES = sorted(
    path
    for path in (ROOT / "README.md", *DOCS.rglob("*.md"))
    if TO_FOLLOW.search(path.read_text(encoding="utf-8")) and path.parent.name != "runbooks"  # see test_runbook.py
)
ROLES = ("shop_publisher", "shop_worker", "shop_operator")


def followed(page: Path, folder: Path, *section: str, on_path: str = "", **environment: str) -> None:
    path = os.pathsep.join(filter(None, [str(Path(sys.executable).parent), on_path, os.environ["PATH"]]))
    plain = {name: value for name, value in os.environ.items() if not name.startswith("REDRIVE_")}
    for name in ("COLUMNS", "PYTEST_ADDOPTS"):  # of this run, not of whoever follows the page
        plain.pop(name, None)
    plain |= {
        "PATH": path,
        "NO_COLOR": "1",
        "TERM": "xterm",
        "LC_ALL": "C.UTF-8",
        "PYTHONWARNINGS": "ignore",
    }
    reader = warm.python(
        [str(Path(__file__).parent / "follow.py"), str(page), *section],
        cwd=folder, env=plain | environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    with reader:
        try:
            said, complained = reader.communicate(timeout=PATIENCE_SECONDS)
        finally:
            reader.kill()
    assert reader.returncode == 0, f"{page.relative_to(ROOT)} cannot be followed:\n{said}\n{complained}"


def needs_postgres(page: Path) -> bool:
    return "DATABASE_URL" in page.read_text(encoding="utf-8")


def needs_kafka(page: Path) -> bool:
    return "KAFKA_SERVERS" in page.read_text(encoding="utf-8")


@pytest.mark.parametrize("page", [page for page in PAGES if needs_kafka(page)], ids=lambda page: page.stem)
def test_a_page_about_kafka_can_be_followed_literally_on_a_real_one(
    page: Path, tmp_path: Path, kafka_server: KafkaServer
) -> None:
    followed(page, tmp_path, KAFKA_SERVERS=kafka_server.bootstrap)


PLAIN = [page for page in PAGES if not needs_postgres(page) and not needs_kafka(page)]


@pytest.mark.parametrize("page", PLAIN, ids=lambda page: page.stem)
def test_a_page_can_be_followed_literally_from_an_empty_folder(page: Path, tmp_path: Path) -> None:
    followed(page, tmp_path)


@pytest.mark.parametrize("page", [page for page in PAGES if needs_postgres(page)], ids=lambda page: page.stem)
def test_a_page_about_postgresql_can_be_followed_literally_on_a_real_one(
    page: Path, tmp_path: Path, postgres_url: str
) -> None:
    try:
        followed(page, tmp_path, DATABASE_URL=postgres_url)
    finally:
        forget_roles(postgres_url)


def forget_roles(url: str) -> None:
    """Roles belong to the whole server, and would be there for the next test."""
    with psycopg.connect(url, autocommit=True) as connection:
        for (role,) in connection.execute("select rolname from pg_roles where rolname = any(%s)", [list(ROLES)]):
            connection.execute(f"drop owned by {role}".encode())
            connection.execute(f"drop role {role}".encode())


def test_the_tour_in_the_readme_says_what_the_tutorial_that_is_followed_says() -> None:
    tutorial = (DOCS / "tutorial" / "from-an-incident-to-a-clean-quarantine.md").read_text(encoding="utf-8")
    readme = (ROOT / "README.md").read_text(encoding="utf-8")

    tour = re.findall(r"^```text\n(\$ redrive groups ls\n.*?)^```$", readme, re.MULTILINE | re.DOTALL)

    assert len(tour) == 1
    assert [line for line in tour[0].splitlines() if line not in tutorial.splitlines()] == []


def test_the_reference_is_what_the_code_says() -> None:
    done = subprocess.run(
        [sys.executable, str(DOCS / "generate.py"), "--check"], capture_output=True, text=True, check=False
    )

    assert done.returncode == 0, done.stdout + done.stderr


def test_every_page_is_in_the_table_of_contents() -> None:
    index = (DOCS / "index.md").read_text(encoding="utf-8")

    missing = [
        str(page.relative_to(DOCS))
        for page in DOCS.rglob("*.md")
        if page.name != "index.md" and f"({page.relative_to(DOCS)})" not in index
    ]

    assert missing == []
