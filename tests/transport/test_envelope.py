"""The envelope, against the official package in both directions, and against everything hostile."""

from __future__ import annotations

import json
from typing import Any

import pytest
from cloudevents.core.bindings import http, kafka
from cloudevents.core.formats.json import JSONFormat
from cloudevents.core.v1.event import CloudEvent as Official
from hypothesis import given
from hypothesis import strategies as st

from redrive.errors import Unparsable
from redrive.transport import envelope
from redrive.transport.base import Message, Mode
from redrive.transport.envelope import CloudEvent, write


def read(message: Message, prefix: str) -> tuple[CloudEvent, Any]:
    found = envelope.read(message, prefix)
    assert found is not None
    return found


FORMAT = JSONFormat()
TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"

texts = st.text(st.characters(blacklist_categories=["Cs"], blacklist_characters="\0"), min_size=1, max_size=40)
uris = st.from_regex(r"[a-z]{1,8}(/[A-Za-z0-9._~-]{1,8}){0,3}", fullmatch=True)
payloads = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | texts | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=10,
)
modes = st.sampled_from(Mode)
prefixes = st.sampled_from(["ce-", "ce_"])
events = st.builds(
    CloudEvent,
    id=texts,
    type=texts,
    source=uris,
    subject=st.none() | texts,
    time=st.none() | st.just("2030-01-01T12:00:00Z"),
    extensions=st.fixed_dictionaries(
        {}, optional={"correlationid": texts, "causationid": texts, "partitionkey": texts, "idempotencykey": texts}
    ),
    headers=st.dictionaries(texts.filter(lambda name: not name.startswith("redrive.")), texts, max_size=4),
)


def sample(**changes: Any) -> CloudEvent:
    given = {
        "id": "1",
        "type": "order.paid",
        "source": "shop",
        "subject": "order/7 ä",
        "time": "2030-01-01T12:00:00Z",
        "extensions": {"correlationid": "c", "partitionkey": "köln"},
        "headers": {"traceparent": TRACE, "Tenant": "acme"},
    }
    return CloudEvent(**{**given, **changes})


# --- our own ---


@given(event=events, payload=payloads, mode=modes, prefix=prefixes)
def test_what_is_written_is_read_back(event: CloudEvent, payload: Any, mode: Mode, prefix: str) -> None:
    message = write(event, json.dumps(payload), "orders", mode, prefix, "m-1")

    back, data = read(message, prefix)

    assert data == payload
    assert (back.id, back.type, back.source, back.time) == (event.id, event.type, event.source, event.time)
    assert (back.subject or None) == event.subject
    assert back.headers == event.headers
    assert {name: back.extensions.get(name) for name in event.extensions} == event.extensions


@given(event=events, payload=payloads, mode=modes)
def test_on_nats_every_header_is_printable_ascii(event: CloudEvent, payload: Any, mode: Mode) -> None:
    message = write(event, json.dumps(payload), "orders", mode, "ce-", "m-1")

    assert all(value.isascii() and value.decode().isprintable() for _, value in message.headers)
    assert all(name.isascii() and ":" not in name and " " not in name for name, _ in message.headers)


# --- the official package reads what we write ---


@given(event=events, payload=payloads)
def test_the_official_package_reads_our_structured_messages(event: CloudEvent, payload: Any) -> None:
    message = write(event, json.dumps(payload), "orders", Mode.STRUCTURED, "ce_", "m-1")
    headers = dict(message.headers)

    official = kafka.from_structured(kafka.KafkaMessage(headers, None, message.body or b""), FORMAT)

    assert official.get_id() == event.id
    assert official.get_type() == event.type
    assert official.get_source() == event.source
    assert official.get_data() == payload
    assert official.get_extension("correlationid") == event.extensions.get("correlationid")


def test_the_official_package_reads_our_binary_messages_on_kafka() -> None:
    message = write(sample(), '{"order": 7}', "orders", Mode.BINARY, "ce_", "m-1")

    official = kafka.from_binary(kafka.KafkaMessage(dict(message.headers), message.key, message.body or b""), FORMAT)

    assert official.get_subject() == "order/7 ä"
    assert official.get_extension("traceparent") == TRACE
    assert official.get_extension("partitionkey") == "köln"
    assert official.get_data() == {"order": 7}


def test_the_official_package_reads_our_binary_messages_over_http() -> None:
    message = write(sample(), '{"order": 7}', "orders", Mode.BINARY, "ce-", "m-1")
    headers = {name: value.decode() for name, value in message.headers}

    official = http.from_binary(http.HTTPMessage(headers, message.body or b""), FORMAT)

    assert official.get_subject() == "order/7 ä"
    assert official.get_extension("partitionkey") == "köln"
    assert official.get_data() == {"order": 7}


# --- we read what the official package writes ---


def official(**more: Any) -> Official:
    attributes = {
        "id": "42",
        "type": "order.paid",
        "source": "/shop",
        "specversion": "1.0",
        "subject": "order/7 ä",
        "datacontenttype": "application/json",
        "traceparent": TRACE,
        "partitionkey": "köln",
        "comexampleextension1": "value",
    }
    return Official(attributes={**attributes, **more}, data={"order": 7})


@pytest.mark.parametrize("binding", ["structured", "binary"])
def test_we_read_what_the_official_package_writes_for_kafka(binding: str) -> None:
    written = (
        kafka.to_structured(official(), FORMAT) if binding == "structured" else kafka.to_binary(official(), FORMAT)
    )
    key = written.key.encode() if isinstance(written.key, str) else written.key

    event, data = read(Message("orders", written.value, tuple(written.headers.items()), key), "ce_")

    assert (event.id, event.type, event.source, event.subject) == ("42", "order.paid", "/shop", "order/7 ä")
    assert event.headers["traceparent"] == TRACE
    assert event.headers["comexampleextension1"] == "value"
    assert event.extensions["partitionkey"] == "köln"
    assert data == {"order": 7}


@pytest.mark.parametrize("binding", ["structured", "binary"])
def test_we_read_what_the_official_package_writes_for_http(binding: str) -> None:
    written = http.to_structured(official(), FORMAT) if binding == "structured" else http.to_binary(official(), FORMAT)
    headers = tuple((name, value.encode()) for name, value in written.headers.items())

    event, data = read(Message("orders", written.body, headers), "ce-")

    assert (event.id, event.subject) == ("42", "order/7 ä")
    assert event.extensions["partitionkey"] == "köln"
    assert data == {"order": 7}


# --- hostile ---

BINARY = (("ce-specversion", b"1.0"), ("ce-id", b"1"), ("ce-type", b"t"), ("ce-source", b"s"))
STRUCTURED = (("content-type", b"application/cloudevents+json"),)


def document(**changes: Any) -> bytes:
    return json.dumps({"specversion": "1.0", "id": "1", "type": "t", "source": "s", **changes}).encode()


@pytest.mark.parametrize(
    ("headers", "body", "reason"),
    [
        (STRUCTURED, None, "tombstone"),
        (STRUCTURED, b"", "empty"),
        (STRUCTURED, b"{", "not JSON"),
        (STRUCTURED, b"[]", "a JSON object, not a list"),
        (STRUCTURED, b"\xff{}", "not UTF-8 at byte 0"),
        (STRUCTURED, b"[" * 100_000, "nested too deeply"),
        (STRUCTURED, document(specversion="0.3"), "specversion '0.3' is unknown"),
        (STRUCTURED, document(specversion=None), "specversion"),
        (STRUCTURED, document(id=""), "no id"),
        (STRUCTURED, document(id=["1"]), "'id' is a list"),
        (STRUCTURED, document(Bad_Name="x"), "cannot name an attribute"),
        (STRUCTURED, document(data_base64="§"), "not base64"),
        (STRUCTURED, document(data=1, data_base64="AA=="), "both data and data_base64"),
        (STRUCTURED, document(redriveheaders="[1]"), "redriveheaders"),
        (STRUCTURED, document(data=1).replace(b"1}", b"NaN}"), "not JSON"),
        (STRUCTURED, b"\0\0\0\0\x2a\x02\x04", "schema id 42 is unknown here"),
        (BINARY, b"\0\0\0\0\x2a\x02\x04", "schema id 42 is unknown here"),
        (BINARY, b"nope", "not JSON"),
        ((*BINARY, ("ce-subject", b"\xff")), b"1", "'ce-subject' is not UTF-8"),
        ((*BINARY, ("ce-subject", "\N{REPLACEMENT CHARACTER}".encode())), b"1", "'ce-subject' is not UTF-8"),
        ((*BINARY, ("ce-subject", b"%ff")), b"1", "behind its percent signs"),
        ((("content-type", b"application/cloudevents-batch+json"),), b"[]", "batch"),
        ((("content-type", b"application/cloudevents+avro"),), b"x", "unknown here"),
    ],
)
def test_what_cannot_be_read_says_why(headers: Any, body: bytes | None, reason: str) -> None:
    with pytest.raises(Unparsable, match=reason):
        read(Message("orders", body, headers), "ce-")


@pytest.mark.parametrize("body", [b"{}", b"", None])
def test_a_message_that_claims_nothing_is_no_cloud_event(body: bytes | None) -> None:
    assert envelope.read(Message("orders", body), "ce-") is None


def test_a_stray_byte_in_a_header_of_no_concern_loses_nothing() -> None:
    event, data = read(Message("orders", b"1", (*BINARY, ("note", b"\xff!"))), "ce-")

    assert data == 1
    assert event.headers == {"note": "\N{REPLACEMENT CHARACTER}!"}


@pytest.mark.parametrize("body", [b"", None])
def test_a_binary_event_may_have_no_data(body: bytes | None) -> None:
    assert read(Message("orders", body, BINARY), "ce-")[1] is None


def test_data_that_is_no_json_is_carried_all_the_same() -> None:
    text = read(Message("orders", b"hello", (*BINARY, ("content-type", b"text/plain"))), "ce-")[1]
    other = read(Message("orders", b"\0\xff", (*BINARY, ("content-type", b"image/png"))), "ce-")[1]

    assert text == "hello"
    assert other == {"datacontenttype": "image/png", "data_base64": "AP8="}


@given(
    body=st.none() | st.binary(max_size=200),
    headers=st.lists(
        st.tuples(st.sampled_from(["content-type", *(name for name, _ in BINARY), "x"]) | st.text(), st.binary()),
        max_size=8,
    ),
    prefix=prefixes,
)
def test_whatever_arrives_is_read_or_unparsable(body: bytes | None, headers: Any, prefix: str) -> None:
    try:
        envelope.read(Message("orders", body, tuple(headers)), prefix)
    except Unparsable as error:
        assert str(error)  # noqa: PT017 - it may also be read


@given(document=st.dictionaries(st.sampled_from(["specversion", "id", "type", "source", "data", "x"]), payloads))
def test_whatever_document_arrives_is_read_or_unparsable(document: dict[str, Any]) -> None:
    try:
        envelope.read(Message("orders", json.dumps(document).encode(), STRUCTURED), "ce-")
    except Unparsable as error:
        assert str(error)  # noqa: PT017 - it may also be read
