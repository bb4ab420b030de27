"""Who may upload, and what the answers are."""

from __future__ import annotations

from pathlib import Path

import pytest

from redrive import ConfigurationError
from redrive.apps.evidence.settings import Limits, Settings
from tests.apps.evidence.conftest import Bench, bench_with, case, upload_of, web


async def test_without_a_token_only_this_machine_may_call(bench: Bench) -> None:
    async with web(bench.desk, client=("10.0.0.9", 1)) as far:
        assert (await far.get("/evidence/jobs")).status_code == 403
    async with web(bench.desk, base_url="http://evil.example") as rebound:
        assert (await rebound.get("/evidence/jobs")).status_code == 403
    async with web(bench.desk) as near:
        assert (await near.get("/evidence/jobs")).status_code == 200
        assert (await near.get("/evidence/jobs", headers={"x-forwarded-for": "10.0.0.9"})).status_code == 403


async def test_with_a_token_it_is_needed(store_url: str, tmp_path: Path) -> None:
    async with bench_with(store_url, tmp_path, token="s3cret") as bench, web(bench.desk, client=("10.0.0.9", 1)) as far:
        data = upload_of((case(), ["a.pdf"]))
        assert (await far.post("/evidence/jobs", content=data)).status_code == 401
        assert (
            await far.post("/evidence/jobs", content=data, headers={"authorization": "Bearer no"})
        ).status_code == 401
        assert (
            await far.post("/evidence/jobs", content=data, headers={"authorization": "Bearer s3cret"})
        ).status_code == 202


async def test_an_upload_that_is_too_large_or_empty_leaves_no_job(store_url: str, tmp_path: Path) -> None:
    async with bench_with(store_url, tmp_path, limits=Limits(upload_bytes=1_000)) as bench:
        large, empty = await bench.upload(bytes(1_001)), await bench.upload(b"")

        assert (large.status_code, empty.status_code) == (413, 400)
        assert "split it" in large.json()["detail"]
        assert await bench.ask("select id from file_job ") == []


async def test_the_same_upload_sent_again_is_the_same_job(bench: Bench) -> None:
    data = upload_of((case(), ["a.pdf"]))

    first = await bench.upload(data, **{"Idempotency-Key": "monday", "X-File-Name": "monday%20%C3%A4.zip"})
    again = await bench.upload(data, **{"Idempotency-Key": "monday"})
    other = await bench.upload(data, **{"Idempotency-Key": "tuesday"})

    assert first.json() == again.json() != other.json()
    assert first.headers["location"].endswith(first.json()["file_job_id"])
    assert (await bench.job(first.json()["file_job_id"]))["file_name"] == "monday ä.zip"
    assert len(await bench.ask("select id from file_job ")) == 2


async def test_rows_come_a_page_at_a_time_and_unknown_jobs_are_not_found(bench: Bench) -> None:
    job_id = await bench.add(upload_of(*((case(), [f"{n}.pdf"]) for n in range(120))))

    async with web(bench.desk) as client:
        first = (await client.get(f"/evidence/jobs/{job_id}")).json()
        second = (await client.get(f"/evidence/jobs/{job_id}?after={first['next_after']}")).json()
        missing = [await client.get(f"/evidence/jobs/{each}") for each in (case(), "nonsense")]
        bad = await client.get(f"/evidence/jobs/{job_id}?after=x")

    assert (len(first["rows"]), len(second["rows"]), second["next_after"]) == (100, 20, None)
    assert [each.status_code for each in missing] == [404, 404]
    assert bad.status_code == 400


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("EVIDENCE_CASE_URL", "case-api"),
        ("EVIDENCE_CASE_TIMEOUT", "soon"),
        ("EVIDENCE_BATCH_ROWS", "0"),
        ("EVIDENCE_N2_LEFTOVERS_FAIL", "perhaps"),
        ("EVIDENCE_BATCH_PAUSE_MIN", "1h"),
        ("EVIDENCE_UPLOAD_MB", "-1"),
        ("EVIDENCE_RETRY_DELAY", "5 minutes"),
    ],
)
def test_a_setting_that_cannot_work_is_refused_by_its_name(name: str, value: str) -> None:
    with pytest.raises(ConfigurationError, match=name):
        Settings.from_env({name: value})


def test_what_is_not_said_is_what_the_design_says() -> None:
    read = Settings.from_env({})

    assert read == Settings()
    assert (read.retry.max_attempts, read.retry.base_delay, read.retry.max_delay, read.retry.jitter) == (
        3,
        300,
        3600,
        0.2,
    )
    assert (read.n2_after, read.n2_leftovers_fail) == (86_400.0, True)
    assert Settings.from_env({"EVIDENCE_RETRY_DELAY": "90s", "EVIDENCE_N2_AFTER": "2h"}).retry.base_delay == 90
