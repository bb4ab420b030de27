"""Over a real Kafka: requests, retries and results travel on their topics."""

from __future__ import annotations

import json
import secrets
from pathlib import Path

import pytest

from redrive import Redrive, RetryPolicy, Status
from redrive.apps.evidence.build import build
from redrive.apps.evidence.desk import N2, TOPICS
from redrive.apps.evidence.fake_cases import FakeCases
from tests.apps.evidence.conftest import case, settings_for, upload_of, web
from tests.kafka_server import KafkaServer
from tests.transport.conftest import Topic
from tests.waiting import until
from tests.worker.conftest import working


@pytest.mark.req("E3")
async def test_requests_retries_and_results_travel_on_their_topics(
    sqlite_url: str, tmp_path: Path, kafka_server: KafkaServer
) -> None:
    prefix = f"t{secrets.token_hex(4)}-"
    topics = {name: Topic(prefix + name, kafka_server.bootstrap) for name in TOPICS.values()}
    for topic in topics.values():
        topic.make()
    cases = FakeCases()
    port = await cases.start()
    shaky = case()
    cases.tell(shaky, "500")
    fast = RetryPolicy(max_attempts=3, base_delay=0.2, max_delay=1.0, jitter=0.2)
    settings = settings_for(
        sqlite_url, tmp_path, port, kafka=kafka_server.bootstrap, kafka_prefix=prefix, retry=fast, scheduler_every=1.0
    )
    async with Redrive(sqlite_url, migrate=True):
        pass
    desk = build(settings)
    try:
        async with desk.app:
            async with web(desk) as client:
                await client.post("/evidence/jobs", content=upload_of((shaky, ["a.pdf", "b.pdf"]), (case(), ["c.pdf"])))
            async with working(desk.app):

                async def over() -> bool:
                    return any(each.type == N2 and each.status is Status.DELIVERED for each in await desk.app.events())

                await until(over)
    finally:
        await cases.stop()

    bodies = {
        name: [json.loads(message.value() or b"") for message in topic.messages()] for name, topic in topics.items()
    }
    (retry,) = bodies["evidence.failed.requests"]
    assert retry["type"] == retry["data"]["event_type"] == "EVIDENCE_ATTACH_RETRY"
    assert (retry["data"]["schema_version"], len(retry["data"]["artifacts"])) == (1, 2)
    assert len(bodies["evidence.attach.requests"]) == 2
    results = [each["data"]["status"] for each in bodies["evidence.attach.results"]]
    assert sorted(results) == ["ATTACHED", "ATTACHED", "ATTACHED", "FAILED"]
    assert {*cases.attached.values()} == {1}
    assert len(cases.attached) == 3
