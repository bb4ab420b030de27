"""Over a real Kafka: requests, retries and results travel on their topics, for clients that know nothing of Redrive."""

from __future__ import annotations

import json
import secrets
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from redrive import Event, Redrive, RetryPolicy, Status
from redrive.apps.evidence.build import build
from redrive.apps.evidence.desk import ATTACH, N1, N2, RESULT, RETRY, TOPICS, Desk
from redrive.apps.evidence.fake_cases import FakeCases
from redrive.apps.evidence.messages import parse_for
from redrive.transport.base import Message
from tests.apps.evidence.conftest import case, settings_for, upload_of, web
from tests.kafka_server import KafkaServer
from tests.transport.conftest import Topic
from tests.waiting import until
from tests.worker.conftest import working

ASKED, FAILED, TOLD = TOPICS[ATTACH], TOPICS[RETRY], TOPICS[RESULT]
FAST = RetryPolicy(max_attempts=3, base_delay=0.2, max_delay=1.0, jitter=0.2)
NEVER = RetryPolicy(max_attempts=3, base_delay=3_000.0, max_delay=3_600.0, jitter=0.2)
OF_A_REQUEST = [
    "event_id", "event_type", "occurred_at", "file_job_id", "file_job_row_id", "case_id", "artifacts", "retry_reason",
    "schema_version",
]  # fmt: skip


class Bench:
    """The app with its topics, and plain clients of them."""

    def __init__(self, desk: Desk, cases: FakeCases, topics: dict[str, Topic]) -> None:
        self.desk, self.cases, self.topics = desk, cases, topics

    async def upload(self, data: bytes) -> str:
        async with web(self.desk) as client:
            return str((await client.post("/evidence/jobs", content=data)).json()["file_job_id"])

    async def ended(self, type_: str) -> None:
        async def over() -> bool:
            found = await self.desk.app.events()
            return any(each.type == type_ and each.status is Status.DELIVERED for each in found)

        await until(over)

    async def rows(self, job_id: str) -> list[dict[str, Any]]:
        async with web(self.desk) as client:
            return list((await client.get(f"/evidence/jobs/{job_id}")).json()["rows"])

    async def dead_letters(self) -> list[Event]:
        return [each for each in await self.desk.app.events() if each.status is Status.FAILED]

    def bodies(self, topic: str) -> list[dict[str, Any]]:
        return [json.loads(each.value() or b"") for each in self.topics[topic].messages()]


@asynccontextmanager
async def evidence(store_url: str, folder: Path, server: KafkaServer, retry: RetryPolicy) -> AsyncIterator[Bench]:
    prefix = f"t{secrets.token_hex(4)}-"
    cases = FakeCases()
    settings = settings_for(
        store_url, folder, await cases.start(), kafka=server.bootstrap, kafka_prefix=prefix, retry=retry,
        scheduler_every=1.0, kafka_partitions=2,
    )  # fmt: skip
    async with Redrive(store_url, migrate=True):
        pass
    desk = build(settings)
    try:
        async with desk.app:
            yield Bench(desk, cases, {name: Topic(prefix + name, server.bootstrap) for name in TOPICS.values()})
    finally:
        await cases.stop()


@pytest.mark.req("E3")
async def test_the_messages_are_the_contract_with_keys_and_topics_are_created(
    store_url: str, tmp_path: Path, kafka_server: KafkaServer
) -> None:
    async with evidence(store_url, tmp_path, kafka_server, FAST) as bench:
        shaky = case()
        bench.cases.tell(shaky, "500")
        await bench.upload(upload_of((shaky, ["a.pdf", "b.pdf"]), (case(), ["c.pdf"])))
        async with working(bench.desk.app):
            await bench.ended(N2)

        (retry,) = bench.bodies(FAILED)
        assert [*retry] == OF_A_REQUEST
        assert (retry["event_type"], retry["schema_version"], len(retry["artifacts"])) == (RETRY, 1, 2)
        assert [[*each] for each in retry["artifacts"]] == [["artifact_id", "s3_key"]] * 2
        asked = bench.bodies(ASKED)
        assert {each["event_type"] for each in asked} == {ATTACH}
        assert len(asked) == 2
        told = bench.bodies(TOLD)
        assert sorted(each["status"] for each in told) == ["ATTACHED", "ATTACHED", "ATTACHED", "FAILED"]
        for topic in TOPICS.values():
            for each in bench.topics[topic].messages():
                body = json.loads(each.value() or b"")
                assert each.key() == body["file_job_row_id"].encode()
                assert dict(each.headers() or [])["ce_id"] == body["event_id"].encode()
        assert {*bench.cases.attached.values()} == {1}
        assert len(bench.cases.attached) == 3


@pytest.mark.req("E1")
async def test_one_id_leads_from_the_zip_to_the_attachment(
    store_url: str, tmp_path: Path, kafka_server: KafkaServer
) -> None:
    async with evidence(store_url, tmp_path, kafka_server, FAST) as bench:
        bench.cases.tell_all("500")
        job_id = await bench.upload(upload_of((case(), ["a.pdf"])))
        async with working(bench.desk.app):
            await bench.ended(N2)

        ((row,), (asked,), (retry,)) = await bench.rows(job_id), bench.bodies(ASKED), bench.bodies(FAILED)
        assert [each["event_id"] for each in row["events"]] == [asked["event_id"], retry["event_id"]]
        assert [each["event_status"] for each in row["events"]] == ["delivered", "delivered"]
        events = {str(each.id): each for each in await bench.desk.app.events()}
        for request, retries, shown in ((asked, "0", row["events"][0]), (retry, "1", row["events"][1])):
            sent, carried = events[request["event_id"]], events[shown["carried_by"]]
            assert sent.payload == carried.payload == request
            assert (sent.headers["retry_count"], carried.headers["retry_count"]) == (retries, retries)
            assert carried.type == TOPICS[request["event_type"]]
            assert (carried.idempotency_key, carried.correlation_id) == (request["event_id"], job_id)


@pytest.mark.req("E3")
async def test_a_plain_client_asks_for_a_retry_and_reads_the_result(
    store_url: str, tmp_path: Path, kafka_server: KafkaServer
) -> None:
    async with evidence(store_url, tmp_path, kafka_server, NEVER) as bench:
        shaky = case()
        bench.cases.tell(shaky, "500")
        job_id = await bench.upload(upload_of((shaky, ["a.pdf"])))
        async with working(bench.desk.app):
            await bench.ended(N1)
            (row,) = await bench.rows(job_id)
            (artifact,) = row["artifacts"]
            assert artifact["retry_status"] == "RETRY_FAILED"
            request = {
                "event_id": str(uuid4()), "event_type": "EVIDENCE_ATTACH_RETRY", "occurred_at": "2025-10-08T10:33:00Z",
                "file_job_id": job_id, "file_job_row_id": row["id"], "case_id": shaky,
                "artifacts": [{"artifact_id": artifact["artifact_id"], "s3_key": artifact["s3_key"]}],
                "retry_reason": "AUTOMATED_RETRY", "schema_version": 1,
            }  # fmt: skip
            bench.topics[FAILED].put(json.dumps(request).encode(), number=3)
            await bench.ended(N2)

        assert bench.cases.calls["POST"] == 2
        results = [(each["artifact_id"], each["status"], each["attempt_count"]) for each in bench.bodies(TOLD)]
        assert sorted(results, key=str) == [
            (artifact["artifact_id"], "ATTACHED", 2),
            (artifact["artifact_id"], "FAILED", 1),
        ]
        (row,) = await bench.rows(job_id)
        assert row["events"][-1]["event_id"] == request["event_id"], "their request is part of the lineage"


@pytest.mark.req("E3")
async def test_a_plain_client_that_asks_for_nonsense_gets_dead_letters_and_nothing_else(
    sqlite_url: str, tmp_path: Path, kafka_server: KafkaServer
) -> None:
    async with evidence(sqlite_url, tmp_path, kafka_server, FAST) as bench:
        await bench.upload(upload_of((case(), ["a.pdf"])))
        async with working(bench.desk.app):
            await bench.ended(N2)
            (request,) = bench.bodies(ASKED)
            unknown = {**request, "event_id": str(uuid4()), "file_job_row_id": str(uuid4())}
            for body in (b"[1]", b"{}", json.dumps(unknown).encode()):
                bench.topics[ASKED].put(body)

            async def three() -> bool:
                return len(await bench.dead_letters()) == 3

            await until(three)

        errors = sorted(each.last_error or "" for each in await bench.dead_letters())
        assert any("has no row" in each for each in errors)
        assert any("no JSON object" in each for each in errors)
        assert bench.cases.calls["POST"] == 1


def test_what_a_message_says_becomes_the_options_of_its_event() -> None:
    parse: Callable[[Message], Any] = parse_for("evidence.failed.requests")

    type_, payload, options = parse(Message("x", b'{"event_id": "1", "file_job_id": "2", "file_job_row_id": "3"}'))

    assert (type_, payload["event_id"]) == ("evidence.failed.requests", "1")
    assert (options["idempotency_key"], options["correlation_id"], options["subject"]) == ("1", "2", "file_job_row/3")
