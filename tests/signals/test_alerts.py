"""Alert rules and dashboard: each alert fires on what it is about, and every metric that is named exists."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from redrive.operate.alerts import rules
from redrive.operate.dashboard import dashboard
from redrive.operate.metrics import COUNTED, KNOWN
from tests.conftest import REQUIRE_ALL, Run
from tests.operate.helpers import redrive

TESTS = Path(__file__).parent / "redrive.rules.test.yml"
NAME = re.compile(r"\bredrive_\w+")
ALERT = re.compile(r"alert: (\w+)")
NAMES = {each.name for each in (*COUNTED, *KNOWN)}
LABELS = {each.name: set(each.labels) | {"job", "instance", "le"} for each in (*COUNTED, *KNOWN)}
SUFFIX = re.compile(r"_(?:bucket|sum|count)$")


@pytest.fixture
def promtool(run: Run) -> str:
    """Find Prometheus' own checker; .ci/run fetches it where there is none."""
    found = shutil.which("promtool")
    if found is None:
        reason = "promtool is not on the PATH: it comes with Prometheus (Debian: apt-get install prometheus)"
        run.missing["promtool"] = reason
        if REQUIRE_ALL:
            pytest.fail(f"REDRIVE_REQUIRE_ALL_BACKENDS=1, but {reason}", pytrace=False)
        pytest.skip(reason)
    run.backends["promtool"] = subprocess.run(
        [found, "--version"], capture_output=True, text=True, check=True
    ).stdout.split()[2]
    return found


def family(name: str) -> str:
    return name if name in NAMES else SUFFIX.sub("", name)


@pytest.mark.req("W10")
def test_each_alert_fires_on_what_it_is_about_and_not_before(promtool: str, tmp_path: Path) -> None:
    (tmp_path / "redrive.rules.yml").write_text(rules())
    (tmp_path / TESTS.name).write_text(TESTS.read_text())

    for command in (["check", "rules", "redrive.rules.yml"], ["test", "rules", TESTS.name]):
        done = subprocess.run([promtool, *command], cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr


def test_each_alert_is_tested_both_ways() -> None:
    tested = TESTS.read_text()

    for alert in ALERT.findall(rules()):
        assert f"alertname: {alert}, exp_alerts: []" in tested, alert
        assert f"alertname: {alert}\n        exp_alerts:\n" in tested, alert


def test_each_alert_says_what_to_do() -> None:
    parts = rules().split("- alert: ")[1:]

    assert [part.partition("\n")[0] for part in parts if "what_to_do: " not in part or "summary: " not in part] == []


def test_the_rules_and_their_tests_name_only_metrics_that_exist() -> None:
    assert {family(name) for name in NAME.findall(rules()) if name != "redrive_"} <= NAMES
    assert {family(name) for name in NAME.findall(TESTS.read_text())} <= NAMES


def test_the_dashboard_names_only_metrics_and_labels_that_exist() -> None:
    queries = [target["expr"] for panel in dashboard()["panels"] for target in panel["targets"]]

    assert len(queries) > 15
    for query in queries:
        for name, selector in re.findall(r"(redrive_\w+)\{([^}]*)\}", query):
            assert family(name) in NAMES, query
            assert set(re.findall(r"(\w+)\s*[!=]=?~?'", selector)) <= LABELS[family(name)], query
        named = {family(name) for name in NAME.findall(query)}
        grouped = {label.strip() for found in re.findall(r"by \(([^)]*)\)", query) for label in found.split(",")}
        assert grouped <= set().union(*(LABELS[name] for name in named)), query


def test_the_panels_of_the_dashboard_do_not_overlap() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in dashboard()["panels"]:
        at = panel["gridPos"]
        cells = {(at["x"] + x, at["y"] + y) for x in range(at["w"]) for y in range(at["h"])}
        assert not cells & taken, panel["title"]
        taken |= cells


def test_the_commands_print_both() -> None:
    assert redrive("alerts").out.strip() == rules().strip()
    assert redrive("dashboard").json == json.loads(json.dumps(dashboard()))
