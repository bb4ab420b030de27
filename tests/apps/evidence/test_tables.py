"""The tables are what the design says, on both databases."""

from __future__ import annotations

from pathlib import Path

import pytest

from redrive import DependencyUnavailable, Status
from redrive.apps.evidence.cases import NETWORK, PERMANENT, Answer
from tests.apps.evidence.conftest import Bench, bench_with, case, upload_of

CATEGORIES = {
    "ATTACHMENT_API_TIMEOUT": "NETWORK", "503": "NETWORK", "NETWORK_TIMEOUT": "NETWORK", "500": "SYSTEM",
    "SYSTEM_ERROR": "SYSTEM", "CORRUPTED_FILE": "DATA", "INVALID_FORMAT": "DATA", "S3_NOT_FOUND": "DATA", "401": "AUTH",
    "403": "AUTH", "UNAUTHORIZED": "AUTH", "CASE_NOT_FOUND": "AUTH", "something else": "SYSTEM",
}  # fmt: skip
COLUMNS = [
    "id",
    "file_job_id",
    "file_job_row_id",
    "case_id",
    "file_name",
    "file_type",
    "file_size_bytes",
    "s3_key",
    "attachment_status",
    "attachment_error_code",
    "attachment_error_message",
    "attached_at",
    "attempt_count",
    "retry_count",
    "retry_status",
    "next_retry_at",
    "last_retry_at",
    "error_category",
    "is_retryable",
    "created_at",
    "updated_at",
]


@pytest.mark.req("E1")
async def test_every_column_of_the_design_is_there(bench: Bench) -> None:
    await bench.ask(f"select {', '.join(COLUMNS)} from file_job_artifact")
    await bench.ask(
        "select evidence_count, evidence_attached_count, evidence_failed_count, evidence_status, evidence_failed_files,"
        " evidence_completed_at from file_job_row"
    )
    await bench.ask("select n1_sent_at, n2_sent_at from file_job ")


@pytest.mark.req("E1")
@pytest.mark.parametrize("retries", [0, 1, 2])
async def test_category_and_retryable_follow_from_the_code(bench: Bench, retries: int) -> None:
    await bench.add(upload_of((case(), ["a.pdf"])))

    for code, category in CATEGORIES.items():
        await bench.write(f"update file_job_artifact set attachment_error_code = '{code}', retry_count = {retries}")
        ((found, is_retryable),) = await bench.ask("select error_category, is_retryable from file_job_artifact")
        assert found == category, code
        assert bool(is_retryable) == (category in ("NETWORK", "SYSTEM") and retries < 2), code
        assert Answer(code).is_permanent == (category in ("DATA", "AUTH")), "the worker judges as the database does"
        assert Answer(code).is_silence == (category == "NETWORK")
    assert {*CATEGORIES} >= NETWORK | PERMANENT


@pytest.mark.req("E1")
async def test_the_indexes_of_the_design_are_there_and_no_unknown_state_is_taken(bench: Bench) -> None:
    await bench.add(upload_of((case(), ["a.pdf"])))
    catalogue = "sqlite_master where type = 'index'" if bench.desk.app.dialect == "sqlite" else "pg_class"
    column = "name" if bench.desk.app.dialect == "sqlite" else "relname"

    async with bench.desk.app.transaction() as tx:
        names = {row[0] for row in await tx.fetch(f"select {column} from {catalogue}")}

    assert {"idx_artifact_retry_scan", "idx_artifact_retry_cover", "idx_artifact_by_job_row"} <= names
    for column, table in (
        ("attachment_status", "file_job_artifact"),
        ("retry_status", "file_job_artifact"),
        ("evidence_status", "file_job_row"),
    ):
        with pytest.raises(Exception, match=r"(?i)check"):
            await bench.write(f"update {table} set {column} = 'SOMEHOW'")


async def test_the_tables_may_be_made_again(bench: Bench) -> None:
    job_id = await bench.add(upload_of((case(), ["a.pdf"])))

    async with bench.desk.app.transaction() as tx:
        await bench.desk.tables.make(tx)

    assert (await bench.job(job_id))["status"] == "COMPLETED"


@pytest.mark.req("E2")
async def test_drifted_roll_ups_are_found_and_put_right(bench: Bench) -> None:
    shaky = case()
    bench.cases.tell(shaky, "422")
    job_id = await bench.add(upload_of((shaky, ["a.pdf", "b.pdf"]), (case(), ["c.pdf"])))
    before = (await bench.job(job_id))["rows"]
    clean = await bench.desk.app.reconcilers.run_here("evidence-rollups")
    assert (clean.compared, clean.different) == (2, 0), "they do not drift by themselves"
    await bench.write(
        "update file_job_row set evidence_attached_count = 7, evidence_status = 'COMPLETED' where line = 2"
    )

    run = await bench.desk.app.reconcilers.run_here("evidence-rollups")
    await bench.h.run_due()

    assert run.different == 1
    assert (await bench.job(job_id))["rows"] == before
    healed = await bench.desk.app.reconcilers.run_here("evidence-rollups")
    assert (healed.different, healed.healed) == (0, 1)


@pytest.mark.req("E8")
async def test_a_notice_that_nobody_sent_is_found_and_sent(bench: Bench) -> None:
    await bench.upload(upload_of((case(), ["a.pdf"])))
    bench.h.fail_next(10, RuntimeError("results are lost"), target="EVIDENCE_ARTIFACT_RESULT")
    bench.h.fail_next(10, RuntimeError("so is the look"), target="evidence.job.look")
    await bench.h.advance("3m")
    assert await bench.h.events("EVIDENCE_N1") == []

    await bench.desk.app.reconcilers.run("evidence-notices")
    await bench.h.run_due()

    assert len(await bench.h.events("EVIDENCE_N1")) == len(await bench.h.events("EVIDENCE_N2")) == 1


@pytest.mark.req("E8")
async def test_a_request_that_a_person_calls_off_ends_and_the_notices_come(bench: Bench) -> None:
    bench.h.fail_next(1, DependencyUnavailable("case-api", "away"), target="EVIDENCE_ATTACH")
    answer = await bench.upload(upload_of((case(), ["a.txt"]), (case(), ["b.txt"])))
    await bench.h.run_due()
    (waiting,) = [each for each in await bench.h.events("EVIDENCE_ATTACH") if each.status is not Status.DELIVERED]
    await bench.desk.app.cancel(waiting.id, by="ada", reason="wrong file")
    await bench.h.advance("1m")
    assert await bench.h.events("EVIDENCE_N1") == []

    await bench.desk.app.reconcilers.run("evidence-requests")
    await bench.h.run_due()

    job = await bench.job(answer.json()["file_job_id"])
    failed = [each for each in (await bench.artifacts()).values() if each[0] == "FAILED"]
    assert failed == [("FAILED", "SYSTEM_ERROR", 1, 0, "PERMANENT_FAILED")]
    assert len(await bench.h.events("EVIDENCE_N1")) == len(await bench.h.events("EVIDENCE_N2")) == 1
    (named,) = job["n2_summary"]["cannot_retry"]
    assert "called off by ada: wrong file" in named["why"]


@pytest.mark.req("E1")
async def test_a_request_has_one_id_wherever_it_is_named(bench: Bench) -> None:
    bench.cases.tell_all("500")
    job_id = await bench.add(upload_of((case(), ["a.pdf"])))
    await bench.retry()

    (row,) = (await bench.job(job_id))["rows"]

    requests = [*await bench.h.events("EVIDENCE_ATTACH"), *await bench.h.events("EVIDENCE_ATTACH_RETRY")]
    assert [str(each.id) for each in requests] == [each.payload["event_id"] for each in requests]
    assert [str(each.id) for each in requests] == [each["event_id"] for each in row["events"]]
    assert [each.headers["retry_count"] for each in requests] == ["0", "1"]
    results = await bench.h.events("EVIDENCE_ARTIFACT_RESULT")
    assert [str(each.id) for each in results] == [each.payload["event_id"] for each in results]
    assert sorted(each.causation_id or "" for each in results) == sorted(str(each.id) for each in requests)


@pytest.mark.req("E1")
async def test_the_tables_of_redrive_may_be_in_another_schema(store_url: str, tmp_path: Path) -> None:
    url = store_url + ("&" if "?" in store_url else "?") + "schema=core"
    async with bench_with(url, tmp_path) as bench:
        job_id = await bench.add(upload_of((case(), ["a.pdf"])))

        (row,) = (await bench.job(job_id))["rows"]

        assert [each["event_status"] for each in row["events"]] == ["delivered"]
        assert (await bench.desk.app.reconcilers.run_here("evidence-requests", dry_run=True)).extra == 0


async def test_a_database_of_an_earlier_version_gets_the_new_columns(bench: Bench) -> None:
    view = "evidence_lineage" if bench.desk.app.dialect == "sqlite" else "evidence.lineage"
    for statement in (
        f"drop view {view}", "alter table file_job_artifact drop column claimed_by",
        "alter table file_job_artifact drop column claimed_until", "alter table file_job_event drop column carried_by",
    ):  # fmt: skip
        await bench.write(statement)

    async with bench.desk.app.transaction() as tx:
        await bench.desk.tables.make(tx)
    job_id = await bench.add(upload_of((case(), ["a.pdf"])))

    assert (await bench.job(job_id))["status"] == "COMPLETED"
