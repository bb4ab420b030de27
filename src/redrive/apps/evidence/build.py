"""Build: the app and everything that belongs to it, from settings."""

import structlog

from redrive import Redrive
from redrive.apps.evidence import attach, expand, figures, messages, notices, receive, retry, rollups, sample
from redrive.apps.evidence.cases import DEPENDENCY, Cases
from redrive.apps.evidence.desk import TOPICS, Desk
from redrive.apps.evidence.settings import Settings
from redrive.apps.evidence.shelf import shelf_for
from redrive.apps.evidence.tables import Tables

log = structlog.get_logger("redrive.apps.evidence")


def build(settings: Settings) -> Desk:
    """Make the app; nothing is opened, asked or listened to yet."""
    if settings.sample:
        settings = sample.with_fake_cases(settings)
    app = Redrive(settings.url, source="evidence")
    desk = Desk(app, settings, Tables(app.dialect, app.schema), shelf_for(settings.objects), Cases(settings))
    app.when_open(desk.tables.make)
    app.when_closed(desk.cases.close)
    app.dependency(DEPENDENCY, probe_after=settings.case_probe, probe_cap=12 * settings.case_probe)
    expand.register(desk)
    attach.register(desk)
    gate = notices.register(desk)
    retry.register(desk)
    rollups.register(desk, gate)
    figures.register(desk)
    app.mount("/evidence", receive.web(desk))
    if settings.kafka:
        _over_kafka(desk)
    if settings.sample:
        sample.register(desk)
    return desk


def _over_kafka(desk: Desk) -> None:
    """Send requests and results to their topics, and take them from there; the topic is the type they come back as."""
    from redrive.transport.kafka import Kafka  # noqa: PLC0415 - an extra, imported when it is asked for

    settings = desk.settings
    partitions = settings.kafka_partitions or None
    kafka = Kafka(settings.kafka.split(","), create_topics=partitions)
    for type_, topic in TOPICS.items():
        name = settings.kafka_prefix + topic
        desk.app.relay(type_, to=kafka.topic(name), mode="binary", key=messages.key)
        desk.app.intake(kafka.topic(name, group=f"{settings.kafka_prefix}evidence"), parse=messages.parse_for(topic))
