"""The repository itself: no file depends on the machine where it was written, and links lead somewhere."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml
from _pytest.mark.expression import Expression

ROOT = Path(__file__).parent.parent

# Joined here, so that this file does not contain what it looks for.
REGISTRIES = [
    ".".join(parts)
    for parts in (
        ("pypi", "org"),
        ("pythonhosted", "org"),
        ("pypi", "python", "org"),
        ("npmjs", "org"),
        ("npmjs", "com"),
        ("yarnpkg", "com"),
        ("crates", "io"),
        ("rubygems", "org"),
        ("anaconda", "org"),
        ("repo1", "maven", "org"),
        ("repo", "maven", "apache", "org"),
        ("proxy", "golang", "org"),
        ("jsr", "io"),
    )
]
REGISTRY = re.compile(rf"(?<![\w-])(?:{'|'.join(map(re.escape, REGISTRIES))})(?![\w-])", re.IGNORECASE)
MACHINE_PATH = re.compile(r"(?<![\w.:/~$}*-])/(?:work|root|home|Users)/(?=\w)")
POSSESSIVE_GROUP = re.compile(r"[^(]\)[*+?]\+|\(\?>")
PART = re.compile(r"^([\w-]+):.*\n\t\$\(BIN\)/pytest .*?-m (?:\"([^\"]+)\"|(\w+))", re.MULTILINE)
FENCE = re.compile(r"^(```|~~~).*?^\1", re.MULTILINE | re.DOTALL)
CODE = re.compile(r"`[^`\n]*`")
LINK = re.compile(r"\[[^\]]*\]\(\s*<?([^)\s>]+)>?[^)]*\)|^\[[^\]]+\]:\s*(\S+)", re.MULTILINE)


def repository_files() -> list[Path]:
    """Return what is, or is about to be, under version control."""
    if shutil.which("git") is None or not (ROOT / ".git").exists():
        pytest.skip("not a git checkout")
    command = ["git", "-C", str(ROOT), "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split("\0")
    return [path for name in names if name and (path := ROOT / name).is_file()]


def places(pattern: re.Pattern[str]) -> list[str]:
    return [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()[:120]}"
        for path in repository_files()
        for number, line in enumerate(path.read_text(encoding="utf-8", errors="replace").splitlines(), 1)
        if pattern.search(line)
    ]


def test_no_pattern_has_a_possessive_group() -> None:
    """Python before 3.11.5 matches them wrongly: there `status!=failed` was a search for that text."""
    found = places(POSSESSIVE_GROUP)

    assert [place for place in found if place.startswith("src/")] == []


def test_no_file_names_a_package_registry() -> None:
    assert places(REGISTRY) == []


def test_no_file_names_a_path_of_somebodys_machine() -> None:
    assert places(MACHINE_PATH) == []


def test_the_requirements_pin_hashes_and_nothing_about_where_packages_come_from() -> None:
    for path in (ROOT / "requirements").glob("*.txt"):
        lines = [line.strip() for line in path.read_text().splitlines()]

        options = [line for line in lines if line.startswith("-") and not line.startswith("--hash=")]

        assert options == [], path.name


def test_the_readme_stays_short() -> None:
    readme = ROOT / "README.md"
    if not readme.exists():
        pytest.skip("there is no README yet")

    assert len(readme.read_text(encoding="utf-8").splitlines()) <= 150


def test_every_relative_link_leads_to_a_file() -> None:
    broken = []
    for page in (path for path in repository_files() if path.suffix == ".md"):
        text = CODE.sub("", FENCE.sub("", page.read_text(encoding="utf-8")))
        for match in LINK.finditer(text):
            target = (match[1] or match[2]).partition("#")[0]
            if not target or re.match(r"[a-z][a-z0-9+.-]*:", target):
                continue
            base = ROOT if target.startswith("/") else page.parent
            if not (base / target.lstrip("/")).exists():
                broken.append(f"{page.relative_to(ROOT)}: {target}")

    assert broken == []


def test_the_compose_file_runs_what_the_pages_speak_of() -> None:
    text = (ROOT / "docker-compose.yml").read_text(encoding="utf-8")
    services = yaml.safe_load(text)["services"]

    addresses = dict(re.findall(r"^#\s+REDRIVE_TEST_(\w+)=(\S+)$", text, re.MULTILINE))
    ports = {name.upper(): service["ports"] for name, service in services.items()}
    assert set(services) == {"postgres", "kafka", "nats"}
    for name, address in addresses.items():
        port = re.search(r"127\.0\.0\.1:(\d+)", address)
        assert port is not None
        assert ports[name] == [f"127.0.0.1:{port[1]}:{port[1]}"]
    assert set(addresses) == set(ports)
    for service in services.values():  # a tag that moves is another server tomorrow
        assert re.fullmatch(r"[a-z/]+:\d+\.\d+(\.\d+)?", service["image"])
    kafka = services["kafka"]["environment"]
    assert kafka["KAFKA_ADVERTISED_LISTENERS"] == f"PLAINTEXT://{addresses['KAFKA']}"
    assert addresses["KAFKA"] in (ROOT / "docs" / "how-to" / "kafka.md").read_text(encoding="utf-8")
    pom = (ROOT / "tests" / "kafka.pom.xml").read_text(encoding="utf-8")
    assert services["kafka"]["image"].rpartition(":")[2] in pom


@pytest.mark.parametrize("marks", [(), ("lab",), ("lab_short",), ("lab", "lab_short")], ids=" ".join)
def test_a_test_is_in_one_part_of_the_suite_and_all_but_the_long_ones_run_before_a_merge(
    marks: tuple[str, ...],
) -> None:
    parts = {target: Expression.compile(quoted or word) for target, quoted, word in PART.findall(_text("Makefile"))}

    chosen = [target for target, part in parts.items() if part.evaluate(lambda name, /, **_: name in marks)]

    assert chosen == ["lab" if "lab" in marks else "lab-short" if "lab_short" in marks else "test"]
    assert re.findall(r"^make ([\w-]+)", _text(".ci/run"), re.MULTILINE) == ["check", "test", "lab-short"]


def _text(path: str) -> str:
    return (ROOT / path).read_text(encoding="utf-8")
