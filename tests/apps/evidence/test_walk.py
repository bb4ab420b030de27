"""From a ZIP to both notices: states, counters, retries, and what must happen once."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from redrive import EventFilter
from redrive.apps.evidence.desk import ATTACH, LOOK, N1, N2, RESULT, RETRY
from tests.apps.evidence.conftest import Bench, bench_with, case, packed, upload_of


async def notices(bench: Bench, type_: str) -> list[dict[str, Any]]:
    return [event.payload for event in await bench.h.events(type_)]


@pytest.mark.req("E1", "E2", "E8")
async def test_all_files_are_attached_and_both_notices_come_once(bench: Bench) -> None:
    one, two = case(), case()

    job_id = await bench.add(upload_of((one, ["a.pdf", "b.pdf"]), (two, ["c.pdf"])))

    assert {*bench.cases.attached.values()} == {1}
    assert len(bench.cases.attached) == 3
    job = await bench.job(job_id)
    assert (job["status"], job["row_count"], job["artifact_count"]) == ("COMPLETED", 2, 3)
    assert [row["evidence_status"] for row in job["rows"]] == ["COMPLETED", "COMPLETED"]
    (n1,), (n2,) = await notices(bench, N1), await notices(bench, N2)
    assert (n1["total"], n1["attached"], n1["will_retry"]) == (3, 3, 0)
    assert (n2["total"], n2["attached"], n2["permanent_failed"], n2["recovered_by_retry"]) == (3, 3, 0, 0)


@pytest.mark.req("E1")
async def test_the_lineage_leads_from_the_zip_to_the_events(bench: Bench) -> None:
    bench.cases.tell_all("500")
    job_id = await bench.add(upload_of((case(), ["a.pdf"])))
    await bench.retry()

    job = await bench.job(job_id)

    (row,) = job["rows"]
    (artifact,) = row["artifacts"]
    assert job["s3_key"] == f"jobs/{job_id}/source.zip"
    assert artifact["s3_key"].startswith(f"jobs/{job_id}/files/")
    assert [(event["event_type"], event["event_status"]) for event in row["events"]] == [
        (ATTACH, "delivered"),
        (RETRY, "delivered"),
    ]
    outbox = await bench.desk.app.events(EventFilter(correlation_id=job_id))
    assert {event["event_id"] for event in row["events"]} <= {str(event.id) for event in outbox}
    view = "evidence_lineage" if bench.desk.app.dialect == "sqlite" else "evidence.lineage"
    async with bench.desk.app.transaction() as tx:
        found = await tx.fetch(f"select zip_key, artifact_id, event_type, event_status from {view}")
    assert {(str(each[1]), each[2], each[3]) for each in found} == {
        (artifact["artifact_id"], ATTACH, "delivered"),
        (artifact["artifact_id"], RETRY, "delivered"),
    }


@pytest.mark.req("E5", "E6", "E8")
async def test_a_failure_is_retried_after_its_time_and_counted_as_recovered(bench: Bench) -> None:
    job_id = await bench.add(upload_of((case(), ["good.pdf"])))
    assert (await bench.artifacts())["good.pdf"] == ("ATTACHED", None, 1, 0, "PENDING")
    other = case()
    bench.cases.tell(other, "503")

    await bench.add(upload_of((other, ["bad.pdf"])))

    assert (await bench.artifacts())["bad.pdf"] == ("FAILED", "503", 1, 0, "RETRY_FAILED")
    await bench.leap("3m28s")
    assert (await bench.artifacts())["bad.pdf"][2] == 1, "not before its time"
    await bench.leap("2m")
    assert (await bench.artifacts())["bad.pdf"] == ("ATTACHED", None, 2, 1, "RETRY_SUCCESS")
    closed, recovered = await notices(bench, N2)
    assert (closed["file_job_id"], closed["recovered_by_retry"]) == (job_id, 0)
    assert (recovered["attached"], recovered["recovered_by_retry"]) == (1, 1)


@pytest.mark.req("E5")
async def test_there_are_three_attempts_with_growing_waits_and_then_it_is_over(bench: Bench) -> None:
    broken = case()
    bench.cases.tell(broken, *["500"] * 10)
    await bench.add(upload_of((broken, ["a.pdf"])))
    waits: list[float] = []

    for attempt in (2, 3):
        ((due,),) = await bench.ask("select next_retry_at from file_job_artifact")
        at = due if not isinstance(due, int) else None
        now = bench.h.now.timestamp()
        waits.append((at.timestamp() if at else due / 1e6) - now)
        await bench.leap(waits[-1])
        assert (await bench.artifacts())["a.pdf"][2] == attempt
    assert 240 <= waits[0] <= 360
    assert 480 - 32 <= waits[1] <= 720
    assert (await bench.artifacts())["a.pdf"] == ("FAILED", "500", 3, 2, "PERMANENT_FAILED")
    await bench.leap("3h")
    assert bench.cases.calls["POST"] == 3
    (n2,) = await notices(bench, N2)
    assert (n2["exhausted"], n2["permanent_failed"], n2["by_error"]) == (1, 0, {"500": 1})
    assert [each["file_name"] for each in n2["cannot_retry"]] == ["a.pdf"]


@pytest.mark.req("E2")
async def test_a_row_says_what_its_artifacts_say(bench: Bench) -> None:
    mixed, lost = case(), case()
    bench.cases.tell(mixed, "500")
    bench.cases.gone.add(lost)

    job_id = await bench.add(upload_of((mixed, ["a.pdf", "b.pdf"]), (lost, ["c.pdf", "d.pdf"]), (case(), ["e.pdf"])))

    rows = (await bench.job(job_id))["rows"]
    counts = [
        (row["evidence_count"], row["evidence_attached_count"], row["evidence_failed_count"], row["evidence_status"])
        for row in rows
    ]
    assert counts == [(2, 1, 1, "PARTIALLY_FAILED"), (2, 0, 2, "FAILED"), (1, 1, 0, "COMPLETED")]
    await bench.retry()
    assert [row["evidence_status"] for row in (await bench.job(job_id))["rows"]] == ["COMPLETED", "FAILED", "COMPLETED"]


@pytest.mark.req("E3")
async def test_a_retry_names_all_artifacts_of_the_row_and_the_worker_tries_only_what_failed(bench: Bench) -> None:
    shaky = case()
    bench.cases.tell(shaky, "500")
    job_id = await bench.add(upload_of((shaky, ["a.pdf", "b.pdf", "c.pdf"])))
    before = bench.cases.calls["POST"]

    await bench.retry()

    (retry,) = await notices(bench, RETRY)
    assert retry["schema_version"] == 1
    assert retry["retry_reason"] == "AUTOMATED_RETRY"
    assert (retry["file_job_id"], retry["case_id"], retry["event_type"]) == (job_id, shaky, RETRY)
    assert len(retry["artifacts"]) == 3
    assert bench.cases.calls["POST"] - before == 1
    assert {*bench.cases.attached.values()} == {1}


@pytest.mark.req("E6")
async def test_every_attempt_at_an_artifact_makes_one_result(bench: Bench) -> None:
    shaky = case()
    bench.cases.tell(shaky, "500", "422")

    await bench.add(upload_of((shaky, ["a.pdf", "b.pdf", "c.pdf"])))
    await bench.retry()

    told = [(each["status"], each["error_code"], each["attempt_count"]) for each in await notices(bench, RESULT)]
    assert sorted(told, key=str) == [
        ("ATTACHED", None, 1),
        ("ATTACHED", None, 2),
        ("FAILED", "500", 1),
        ("FAILED", "CORRUPTED_FILE", 1),
    ]


@pytest.mark.req("E9")
async def test_a_case_that_is_deleted_meanwhile_is_permanent(bench: Bench) -> None:
    doomed = case()
    bench.cases.tell(doomed, "500")
    await bench.add(upload_of((doomed, ["a.pdf"])))

    bench.cases.gone.add(doomed)
    await bench.retry()
    calls = bench.cases.calls.total()
    await bench.leap("5h")

    assert (await bench.artifacts())["a.pdf"] == ("FAILED", "CASE_NOT_FOUND", 2, 1, "PERMANENT_FAILED")
    assert bench.cases.calls.total() == calls
    (n2,) = await notices(bench, N2)
    assert (n2["permanent_failed"], n2["cannot_retry"][0]["error_code"]) == (1, "CASE_NOT_FOUND")


@pytest.mark.req("E9")
async def test_evidence_that_comes_later_is_a_new_job_and_the_old_notice_stays(bench: Bench) -> None:
    same = case()
    first = await bench.add(upload_of((same, ["a.pdf"])))
    before = (await bench.job(first))["n2_summary"]

    second = await bench.add(upload_of((same, ["b.pdf"])))
    requests = [event for event in await bench.h.events(ATTACH) if event.payload["file_job_id"] == first]
    for event in requests:
        await bench.desk.app.publish(ATTACH, event.payload)  # the same request once more, long after
    await bench.desk.app.publish(LOOK, {"file_job_id": first})
    await bench.h.run_due()

    assert second != first
    assert (await bench.job(first))["n2_summary"] == before
    assert len(await notices(bench, N2)) == 2
    assert {*bench.cases.attached.values()} == {1}


@pytest.mark.req("E8")
async def test_n1_waits_for_the_last_first_attempt(bench: Bench) -> None:
    slow = case()
    await bench.upload(upload_of((slow, ["a.pdf"]), (case(), ["b.pdf"])))
    bench.h.fail_next(1, ConnectionError("a worker stumbles"), target=ATTACH)

    await bench.h.run_due()

    assert await notices(bench, N1) == []
    await bench.h.advance("1m")
    (n1,) = await notices(bench, N1)
    assert n1["total"] == 2


@pytest.mark.req("E8")
async def test_many_that_look_at_once_send_each_notice_once(store_url: str, tmp_path: Path) -> None:
    async with bench_with(store_url, tmp_path) as bench:
        job_id = await bench.add(upload_of((case(), ["a.pdf"])))
        await bench.write("update file_job set n1_sent_at = null, n2_sent_at = null, status = 'PROCESSING'")
        from redrive.apps.evidence.notices import Gate

        gates = [Gate(bench.desk) for _ in range(8)]  # as of eight processes
        await asyncio.gather(*(gate.look(job_id) for gate in gates for _ in range(3)))

        assert len(await notices(bench, N1)) == 2
        assert len(await notices(bench, N2)) == 2


@pytest.mark.req("E8")
@pytest.mark.parametrize("fail", [True, False])
async def test_n2_is_forced_when_its_time_has_come(store_url: str, tmp_path: Path, fail: bool) -> None:
    async with bench_with(store_url, tmp_path, n2_after=600.0, n2_leftovers_fail=fail) as bench:
        stuck = case()
        bench.cases.tell(stuck, *["500"] * 10)
        await bench.add(upload_of((stuck, ["a.pdf"]), (case(), ["b.pdf"])))
        await bench.leap("8m")
        assert await notices(bench, N2) == []

        await bench.h.advance("2m")

        (n2,) = await notices(bench, N2)
        assert n2["forced"] is True
        assert (n2["total"], n2["attached"]) == (2, 1)
        assert (n2["exhausted"], n2["given_up"], n2["unsettled"]) == ((0, 1, 0) if fail else (0, 0, 1))
        calls = bench.cases.calls["POST"]
        await bench.leap("3h")
        await bench.leap("3h")
        retried = bench.cases.calls["POST"] - calls
        assert retried == (0 if fail else 1), "what is still retryable is retried, up to three attempts in all"
        assert (await bench.artifacts())["a.pdf"][4] == "PERMANENT_FAILED"
        assert await bench.ask("select id from file_job_artifact where next_retry_at is not null") == []
        assert len(await notices(bench, N2)) == 1


async def test_a_dead_request_leaves_its_artifacts_to_the_scheduler(bench: Bench) -> None:
    await bench.upload(upload_of((case(), ["a.pdf"])))
    bench.h.fail_next(5, RuntimeError("a bug"), target=ATTACH)

    await bench.h.advance("1m")

    assert len(await bench.h.dead_letters(ATTACH)) == 1
    assert (await bench.artifacts())["a.pdf"] == ("FAILED", "SYSTEM_ERROR", 1, 0, "RETRY_FAILED")
    await bench.retry()
    assert (await bench.artifacts())["a.pdf"][0] == "ATTACHED"
    (n2,) = await notices(bench, N2)
    assert n2["recovered_by_retry"] == 1


@pytest.mark.req("E6", "E7")
async def test_an_answer_that_was_lost_is_asked_for_and_not_attached_again(store_url: str, tmp_path: Path) -> None:
    async with bench_with(store_url, tmp_path, honours_keys=False) as bench:
        one = case()
        bench.cases.tell(one, "lose", "lose")
        await bench.add(upload_of((one, ["a.pdf", "b.pdf", "c.pdf"])))
        assert sorted(each[0] for each in (await bench.artifacts()).values()) == ["ATTACHED", "FAILED", "FAILED"]

        await bench.retry()

        assert {name: each[0] for name, each in (await bench.artifacts()).items()} == dict.fromkeys(
            ("a.pdf", "b.pdf", "c.pdf"), "ATTACHED"
        )
        assert {*bench.cases.attached.values()} == {1}, "this API attaches whatever comes: only asking first helps"
        assert bench.cases.calls["POST"] == 3


@pytest.mark.req("E7")
async def test_a_worker_that_fails_after_the_call_makes_the_next_one_ask_first(
    store_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with bench_with(store_url, tmp_path, honours_keys=False) as bench:
        from redrive.apps.evidence import attach

        settle = attach._settle
        struck: list[bool] = []

        async def strike(*arguments: Any) -> Any:
            if not struck:
                struck.append(True)
                raise ConnectionError("the database blinked after the calls")
            return await settle(*arguments)

        monkeypatch.setattr(attach, "_settle", strike)
        await bench.add(upload_of((case(), ["a.pdf", "b.pdf"])))
        await bench.h.advance("1m")

        assert {*bench.cases.attached.values()} == {1}
        assert bench.cases.calls["POST"] == 2
        assert (await bench.artifacts())["a.pdf"] == ("ATTACHED", None, 1, 0, "PENDING")


@pytest.mark.req("E7")
async def test_the_artifact_is_the_key_of_the_call(bench: Bench) -> None:
    job_id = await bench.add(upload_of((case(), ["a.pdf"])))

    assert [*bench.cases.attached] == [bench.artifact_id(job_id, 2, "a.pdf")]


async def test_a_large_file_is_streamed(bench: Bench) -> None:
    big = b"%PDF-1.7 " + bytes(range(256)) * 12_000

    await bench.add(packed(f"case_id,files\n{case()},big.pdf\n", {"big.pdf": big}))

    assert (await bench.artifacts())["big.pdf"][0] == "ATTACHED"


def spoil(folder: Path) -> None:
    for path in folder.rglob("*.pdf"):
        path.unlink() if path.name.endswith("a.pdf") else path.write_bytes(b"%PDF- cut")


async def test_an_object_that_is_gone_or_has_changed_is_permanent(bench: Bench, tmp_path: Path) -> None:
    await bench.upload(upload_of((case(), ["a.pdf", "b.pdf"])))
    bench.h.fail_next(1, ConnectionError("later"), target=ATTACH)
    await bench.h.run_due()
    spoil(tmp_path)

    await bench.h.advance("1m")

    found = await bench.artifacts()
    assert found["a.pdf"][:2] == ("FAILED", "S3_NOT_FOUND")
    assert found["b.pdf"][:2] == ("FAILED", "CORRUPTED_FILE")
    assert len(await notices(bench, N2)) == 1
