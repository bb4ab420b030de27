"""Metrics under the names of the design, and alerts that fire on what they are about."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from redrive.apps.evidence.figures import ALL, rules
from redrive.operate.metrics import metrics_text
from tests.apps.evidence.conftest import Bench, bench_with, case, upload_of
from tests.conftest import REQUIRE_ALL, Run

TESTS = Path(__file__).parent / "evidence.rules.test.yml"
NAMES = {each.name for each in ALL}
OF_THE_DESIGN = {
    "evidence_attach_first_attempt_success_rate", "evidence_attach_retry_success_rate", "evidence_retry_queue_depth",
    "evidence_n2_latency_seconds", "evidence_permanent_failures_count", "scheduler_duration_seconds",
    "scheduler_batch_size", "scheduler_circuit_breaker_open_count",
}  # fmt: skip


def values(text: str) -> dict[str, float]:
    return {name: float(value) for name, value in re.findall(r"^(\S+?) (\S+)$", text, re.MULTILINE)}


@pytest.mark.req("E10")
async def test_the_metrics_of_the_design_say_what_happened(bench: Bench) -> None:
    shaky, broken = case(), case()
    bench.cases.tell(shaky, "500")
    bench.cases.tell(broken, "403")
    await bench.add(upload_of((shaky, ["a.pdf"]), (broken, ["b.pdf"]), (case(), ["c.pdf"]), (case(), ["d.pdf"])))

    before = values((await metrics_text(bench.desk.app)).decode())
    await bench.retry()
    after = values((await metrics_text(bench.desk.app)).decode())

    assert before["evidence_attach_first_attempt_success_rate"] == 0.5
    assert before['evidence_retry_queue_depth{of="artifacts"}'] == before['evidence_retry_queue_depth{of="rows"}'] == 1
    assert before['evidence_permanent_failures_count{error_code="403"}'] == 1
    assert after["evidence_attach_retry_success_rate"] == 1.0
    assert after['evidence_retry_queue_depth{of="artifacts"}'] == 0
    assert 240 < after['evidence_n2_latency_seconds{stat="average"}'] < 900
    assert after["evidence_n2_forced_count"] == 0
    assert {name.partition("{")[0] for name in after} >= OF_THE_DESIGN


@pytest.mark.req("E8", "E10")
async def test_what_is_given_up_for_a_forced_notice_is_counted_as_permanent(store_url: str, tmp_path: Path) -> None:
    async with bench_with(store_url, tmp_path, n2_after=60.0) as bench:
        shaky = case()
        bench.cases.tell(shaky, "503")
        await bench.add(upload_of((shaky, ["a.pdf"]), (case(), ["b.pdf"])))

        await bench.leap("2m")

        told = values((await metrics_text(bench.desk.app)).decode())
        assert told['evidence_permanent_failures_count{error_code="503"}'] == 1
        assert told['evidence_retry_queue_depth{of="artifacts"}'] == 0


@pytest.mark.req("E10")
def test_each_alert_fires_on_what_it_is_about_and_not_before(run: Run, tmp_path: Path) -> None:
    promtool = shutil.which("promtool") or ""
    if not promtool:
        run.missing["promtool"] = "promtool is not on the PATH: it comes with Prometheus"
        pytest.fail(run.missing["promtool"]) if REQUIRE_ALL else pytest.skip(run.missing["promtool"])
    assert promtool is not None
    (tmp_path / "evidence.rules.yml").write_text(rules())
    (tmp_path / TESTS.name).write_text(TESTS.read_text())

    for command in (["check", "rules", "evidence.rules.yml"], ["test", "rules", TESTS.name]):
        done = subprocess.run([promtool, *command], cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.req("E10")
def test_the_rules_name_only_metrics_that_exist_and_are_all_tested() -> None:
    named = set(re.findall(r"\b(?:evidence|scheduler)_[a-z0-9_]+", rules()))

    assert named <= NAMES
    assert OF_THE_DESIGN <= NAMES
    alerts = re.findall(r"alert: (\w+)", rules())
    assert len(alerts) == 4
    for alert in alerts:
        assert f"alertname: {alert}, exp_alerts: []" in TESTS.read_text()
        assert f"alertname: {alert}\n        exp_alerts:\n" in TESTS.read_text()
