"""The benchmark itself: every scenario runs on every store, and no figure comes from a run that lost an event."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from redrive.operate.cli.bench.commands import bench
from redrive.operate.cli.bench.measure import BenchFailed, Report, rate_of
from redrive.operate.cli.bench.place import Rows, SqlitePlace
from redrive.operate.cli.bench.pressure import _windows
from tests import warm
from tests.servers import NatsServer, Postgres

ALWAYS = {"scenario", "store", "spread", "goals", "settings", "machine", "versions", "commit", "at"}


@pytest.fixture(autouse=True)
def starts_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let what is measured be forked: a hundred starts of Python took longer than the measurements."""
    monkeypatch.setattr(sys, "executable", warm.launcher())


@pytest.fixture(params=["sqlite", "postgres"])
def store_options(request: pytest.FixtureRequest) -> list[str]:
    if request.param == "sqlite":
        return ["--store", "sqlite", "--folder", str(request.getfixturevalue("tmp_path"))]
    server: Postgres = request.getfixturevalue("postgres_server")
    return ["--store", "postgres", "--url", server.url]


def measured(*arguments: str) -> dict[str, Any]:
    result = CliRunner().invoke(bench, [*arguments, "--repeat", "1", "--json"])
    assert result.exit_code == 0, result.output
    found: dict[str, Any] = json.loads(result.stdout)
    assert found.keys() >= ALWAYS
    return found


def test_drain_tells_the_rate_beside_the_raw_loop_of_the_same_run(store_options: list[str]) -> None:
    found = measured("drain", "--events", "700", *store_options)

    assert found["rate"] > 0
    assert found["raw_rate"] > 0
    assert found["ratio_to_raw"] == pytest.approx(found["rate"] / found["raw_rate"], rel=0.01)
    assert found["spread"]["rate"].keys() == {"min", "median", "max"}
    assert found["goals"][0]["figure"] == "ratio_to_raw"


def test_drain_with_two_processes_shares_the_events(postgres_server: Postgres, tmp_path: Path) -> None:
    profile = tmp_path / "profile.txt"
    options = ["--store", "postgres", "--url", postgres_server.url, "--processes", "2", "--profile", str(profile)]

    found = measured("drain", "--events", "700", *options)

    assert found["rate"] > 0
    assert "=== thread main" in profile.read_text()


def test_publish_tells_bulk_and_single(store_options: list[str]) -> None:
    found = measured("publish", "--events", "200", *store_options)

    assert found["ratio_to_raw"] > 0
    assert found["single_ratio_to_raw"] > 0


def test_http_tells_the_rate_of_publishes_that_were_stored(store_options: list[str]) -> None:
    found = measured("http", "--events", "200", *store_options)

    assert found["rate"] > 0
    assert found["server_cores"] > 0


def test_webhooks_tells_the_rate_with_a_worker_and_without(store_options: list[str]) -> None:
    found = measured("webhooks", "--events", "200", *store_options)

    assert found["rate"] > 0
    assert 0 < found["p50_ms"] <= found["p99_ms"]
    assert found["working_rate"] > 0


def test_latency_tells_p50_and_p99(store_options: list[str]) -> None:
    found = measured("latency", "--events", "3", *store_options)

    assert 0 <= found["p50_ms"] <= found["p99_ms"]
    assert 0 <= found["same_process_p50_ms"] <= found["same_process_p99_ms"]


def test_relay_and_intake_are_measured_beside_the_bare_client(
    store_options: list[str], nats_server: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REDRIVE_TEST_NATS", nats_server.url)

    relayed = measured("relay", "--events", "300", *store_options)
    taken = measured("intake", "--events", "300", *store_options)

    assert relayed["ratio_to_bare"] > 0
    assert 0 < relayed["p50_ms"] <= relayed["p99_ms"]
    assert taken["ratio_to_bare"] > 0


def test_idle_tells_the_share_of_a_core(tmp_path: Path) -> None:
    found = measured("idle", "--seconds", "0.3", "--store", "sqlite", "--folder", str(tmp_path))

    assert 0 <= found["cpu_percent"] < 100


def test_snapshot_tells_the_last_window_beside_the_first(postgres_server: Postgres) -> None:
    found = measured("snapshot", "--seconds", "2.4", "--store", "postgres", "--url", postgres_server.url)

    assert len(found["rates"]) == 4
    assert found["first_rate"] > 0
    assert found["last_to_first"] == pytest.approx(found["last_rate"] / found["first_rate"], rel=0.01)


def test_backlog_tells_the_drain_beside_that_of_an_empty_table(store_options: list[str]) -> None:
    found = measured("backlog", "--events", "300", *store_options)

    assert found["ratio_to_empty"] == pytest.approx(found["rate"] / found["empty_rate"], rel=0.01)
    assert found["raw_rate"] > 0


def test_batch_tells_the_rate_of_members_and_how_soon_the_notices_came(store_options: list[str]) -> None:
    found = measured("batch", "--events", "700", *store_options)

    assert found["ratio_to_drain"] > 0
    assert 0 < found["first_delay_seconds"] < 60
    assert 0 < found["final_delay_seconds"] < 60


def test_keys_tells_the_rate_beside_that_of_events_without_keys(store_options: list[str]) -> None:
    found = measured("keys", "--events", "700", *store_options)

    assert found["ratio_to_drain"] == pytest.approx(found["rate"] / found["drain_rate"], rel=0.01)
    assert found["settings"]["keys"] == 70


def test_storm_tells_attempts_beside_the_drain(store_options: list[str]) -> None:
    found = measured("storm", "--events", "300", *store_options)

    assert found["ratio_to_drain"] == pytest.approx(found["rate"] / found["drain_rate"], rel=0.01)


def test_redrive_tells_the_rate_beside_the_drain(store_options: list[str]) -> None:
    found = measured("redrive", "--events", "300", *store_options)

    assert found["ratio_to_drain"] == pytest.approx(found["rate"] / found["drain_rate"], rel=0.01)


def test_reconcile_tells_the_time_and_the_memory_of_a_comparison(store_options: list[str]) -> None:
    found = measured("reconcile", "--events", "5000", *store_options)

    assert found["seconds"] > 0
    assert {goal["figure"] for goal in found["goals"]} == {"seconds", "peak_rss_mb"}


def test_metrics_tells_what_a_scrape_costs_and_what_it_costs_the_events(store_options: list[str]) -> None:
    found = measured("metrics", "--events", "1000", *store_options)

    assert {row["source"] for row in found["table"]} >= {"scrape", "events", "due", "dead_letters"}
    assert found["scrape_p95_ms"] > 0
    assert found["ratio_to_unscraped"] > 0


def test_quarantine_tells_every_page_and_the_plan(store_options: list[str]) -> None:
    found = measured("quarantine", "--events", "1000", *store_options)

    assert found["slowest_page_p95_ms"] == max(row["p95_ms"] for row in found["table"])
    assert {"overview", "groups", "status:failed"} <= {row["page"] for row in found["table"]}
    assert found["settings"]["samples"] == 5, "and twenty, where it is a measurement"
    assert found["plan_seconds"] > 0
    assert 0 < found["plan_peak_rss_mb"] < 500


def test_beside_tells_the_pick_up_with_and_without_a_redrive(tmp_path: Path) -> None:
    found = measured("beside", "--events", "5", "--store", "sqlite", "--folder", str(tmp_path))

    assert found["ratio_of_p50"] == pytest.approx(found["beside_p50_ms"] / found["p50_ms"], rel=0.01)


def test_reserve_tells_takes_alone_and_fought_over(store_options: list[str]) -> None:
    found = measured("reserve", "--events", "400", *store_options)

    assert found["winners"] == 4
    assert found["take_and_release_rate"] > 0
    assert found["contended_rate"] > 0


def test_schedules_tells_what_they_add_to_an_idle_worker(tmp_path: Path) -> None:
    found = measured("schedules", "--events", "20", "--seconds", "0.3", "--store", "sqlite", "--folder", str(tmp_path))

    assert found["cpu_percent"] > 0
    assert found["added_cpu_percent"] >= 0
    assert found["goals"][0]["figure"] == "added_cpu_percent"


def test_growth_tells_a_row_for_each_variation(tmp_path: Path) -> None:
    found = measured("growth", "--events", "100", "--store", "sqlite", "--folder", str(tmp_path))

    assert [row["varied"] for row in found["table"]] == ["backlog"] * 3 + ["payload"] * 3 + ["workers"] * 3
    assert [row["workers"] for row in found["table"]][-3:] == [1, 2, 4]
    assert 0 < found["peak_rss_mb"] < 500


def test_people_see_a_table_with_the_target(tmp_path: Path) -> None:
    result = CliRunner().invoke(
        bench,
        ["idle", "--seconds", "0.1", "--repeat", "1", "--store", "sqlite", "--folder", str(tmp_path)],
    )

    assert result.exit_code == 0
    assert "cpu_percent" in result.stdout
    assert "≤ 1.0" in result.stdout


def test_an_unknown_store_is_one_clear_sentence() -> None:
    result = CliRunner().invoke(bench, ["drain", "--store", "oracle"])

    assert result.exit_code == 1
    assert "use --store sqlite or --store postgres" in result.stderr.replace("\n", " ")


@pytest.mark.parametrize(
    ("words", "what"),
    [
        (["drain", "--store", "postgres"], "--url postgresql://user@host/database"),
        (["relay", "--store", "sqlite"], "REDRIVE_TEST_NATS=nats://host:4222"),
        (["relay", "--store", "sqlite", "--broker", "kafka"], "REDRIVE_TEST_KAFKA=host:9092"),
    ],
)
def test_a_server_that_was_not_named_is_one_clear_sentence(
    words: list[str], what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("REDRIVE_TEST_NATS", "REDRIVE_TEST_KAFKA"):
        monkeypatch.delenv(name, raising=False)

    result = CliRunner().invoke(bench, words)

    assert result.exit_code == 1
    assert what in result.stderr.replace("\n", " ")
    assert "make bench" in result.stderr


def test_a_run_that_lost_an_event_has_no_rate() -> None:
    with pytest.raises(BenchFailed, match="9 events were processed instead of 10"):
        rate_of([{"count": 4, "began": 0.0, "ended": 1.0}, {"count": 5, "began": 0.0, "ended": 1.0}], 10)


def test_the_rate_of_several_processes_spans_the_first_start_to_the_last_end() -> None:
    first, second = {"count": 4, "began": 1.0, "ended": 2.0}, {"count": 6, "began": 1.5, "ended": 6.0}

    assert rate_of([first, second], 10) == 2.0


def test_a_missed_goal_says_so() -> None:
    report = Report("drain", "sqlite", {})
    report.put("rate", [10.0, 30.0, 20.0])
    report.put("raw_rate", [100.0, 100.0, 100.0])
    report.ratio("ratio_to_raw", "rate", "raw_rate")
    report.goal("ratio_to_raw", 0.25)

    assert report.figures["ratio_to_raw"] == 0.2
    assert report.spread["ratio_to_raw"] == {"min": 0.1, "median": 0.2, "max": 0.3}
    assert not report.goals[0].reached(report.figures["ratio_to_raw"])


def test_windows_are_cut_exactly_and_leave_out_what_lies_around_them() -> None:
    timeline = [(-1.0, 0), (0.5, 150), (1.5, 350), (2.5, 450)]  # 100 a second, then 200, then 100

    assert _windows(timeline, 1.0, 2) == [150.0, 150.0]
    with pytest.raises(BenchFailed, match=r"ended after 2\.5 s of 3\.0 s"):
        _windows(timeline, 1.0, 3)


async def test_rows_lie_ready_as_ordered_and_the_file_is_gone_afterwards(tmp_path: Path) -> None:
    place = SqlitePlace(tmp_path)

    async with place.fresh(Rows(30), Rows(20, status="failed"), Rows(10, status="delivered")) as url:
        assert await place.count(url) == {"pending": 30, "failed": 20, "delivered": 10}

    assert list(tmp_path.iterdir()) == []  # noqa: ASYNC240 - a look at an empty folder
