"""The envelope: an event as a message, in the words of CloudEvents 1.0.

Structured: one JSON document with the attributes and the data. Binary: the data is the body, the attributes are
headers, ``ce_`` on Kafka, ``ce-`` on NATS and over HTTP. What cannot be read is ``Unparsable``, with the reason and the
place; whatever arrives, nothing else is raised. A payload goes out as the JSON text it is stored as, and is not decoded
for that.

Next: ``relay`` sends it; ``intake`` stores what was read, and so does the HTTP API.
"""

import base64
import binascii
import json
import re
from collections.abc import Mapping
from functools import lru_cache
from types import MappingProxyType
from typing import Any, Final, NamedTuple
from urllib.parse import quote, unquote

from pydantic_core import to_json

from redrive.errors import PayloadRefused, Unparsable
from redrive.payload import parse_strict
from redrive.transport.base import OURS, Message, Mode

SPECVERSION: Final = "1.0"
STRUCTURED: Final = "application/cloudevents+json"
BATCH: Final = "application/cloudevents-batch+json"
JSON: Final = "application/json"

CORRELATION: Final = "correlationid"
CAUSATION: Final = "causationid"
PARTITION_KEY: Final = "partitionkey"
IDEMPOTENCY_KEY: Final = "idempotencykey"
SITE: Final = "redrivesite"
BUNDLE: Final = "redriveheaders"
"""Headers whose names no broker takes, as one JSON text."""
TRACING: Final = ("traceparent", "tracestate")
SITE_HEADER: Final = f"{OURS}site"

_OURS: Final = frozenset((CORRELATION, CAUSATION, PARTITION_KEY, IDEMPOTENCY_KEY, SITE))
_NO_SOURCE: Final = "redrive"  # the attribute must not be empty
_ATTRIBUTES: Final = frozenset(
    ("specversion", "id", "type", "source", "subject", "time", "datacontenttype", "dataschema", "data", "data_base64")
)
_EXTENSION: Final = re.compile(r"[a-z0-9]+")
_HEADER_NAME: Final = re.compile(r"[A-Za-z][A-Za-z0-9._-]*")
_RESERVED: Final = re.compile(
    r"ce[-_]|nats-|content-type$|status$|description$|__connect\.|kafka_dlt-|redrive\.", re.IGNORECASE
)
_URI: Final = "".join(map(chr, range(0x21, 0x7F))).translate(str.maketrans("", "", '"<>\\^`{|}'))
_PRINTABLE: Final = "".join(map(chr, range(0x21, 0x7F))).translate(str.maketrans("", "", '"%'))
_SCHEMA_HEAD: Final = 5  # a zero, and the number of a schema in a registry
_SHOWN: Final = 80


class CloudEvent(NamedTuple):
    """What is said of an event on its journey, beside its data."""

    id: str
    type: str
    source: str
    subject: str | None = None
    time: str | None = None
    extensions: Mapping[str, str | None] = MappingProxyType({})
    headers: Mapping[str, str] = MappingProxyType({})
    """The event's own, beside the attributes."""


# --- sites ---


def stamped(headers: Any, site: str) -> Any:
    """Say where an event begins, unless it says so itself."""
    if headers is None:
        return {SITE_HEADER: site}
    # What is no mapping is refused where headers are checked.
    return {SITE_HEADER: site, **headers} if isinstance(headers, Mapping) else headers


def is_foreign(headers: Any, site: str) -> bool:
    """Tell whether an event began at another site than this."""
    return isinstance(headers, Mapping) and headers.get(SITE_HEADER, site) != site


# --- out ---


def write(event: CloudEvent, data: str, topic: str, mode: Mode, prefix: str, message_id: str) -> Message:
    """Put an event and its data, a JSON text, into a message."""
    attributes = {
        "specversion": SPECVERSION,
        "id": event.id,
        "type": event.type,
        "source": _uri(event.source),
    }
    if event.subject:
        attributes["subject"] = event.subject
    if event.time:
        attributes["time"] = event.time
    attributes |= {name: said for name, said in event.extensions.items() if said}
    headers = _add_headers(event.headers, attributes) if event.headers else []
    key = attributes.get(PARTITION_KEY)
    body = data.encode()
    if mode is Mode.STRUCTURED:
        attributes["datacontenttype"] = JSON
        body = b'%b,"data":%b}' % (to_json(attributes)[:-1], body)  # 2 µs, json.dumps takes 6
        headers.append(("content-type", STRUCTURED.encode()))
    else:
        encoded = percent if prefix == "ce-" else str.encode
        headers += [(prefix + name, encoded(value)) for name, value in attributes.items()]
        headers.append(("content-type", JSON.encode()))
    return Message(topic, body, tuple(headers), None if key is None else key.encode(), message_id)


def _add_headers(given: Mapping[str, str], attributes: dict[str, str]) -> list[tuple[str, bytes]]:
    """Sort the event's own headers: some are attributes, the others headers, as far as every broker takes them."""
    headers: list[tuple[str, bytes]] = []
    odd: dict[str, str] = {}
    for name, value in given.items():
        if name in TRACING:
            attributes[name] = value
            if _fits_a_header(value):  # by the side, where what traces the broker's clients looks for it
                headers.append((name, value.encode()))
        elif name == SITE_HEADER:
            attributes[SITE] = value
        elif name.startswith(OURS):
            continue
        elif _HEADER_NAME.fullmatch(name) and not _RESERVED.match(name) and _fits_a_header(value):
            headers.append((name, value.encode()))
        else:
            odd[name] = value
    if odd:
        attributes[BUNDLE] = json.dumps(odd)
    return headers


@lru_cache(maxsize=1_024)  # sources are few and come again with every event
def _uri(source: str) -> str:
    return quote(source, safe=_URI) or _NO_SOURCE


def _fits_a_header(value: str) -> bool:
    """Say whether it comes back from any broker as it went: NATS cuts blanks off, and knows lines."""
    return value.isascii() and value.isprintable() and value == value.strip()


def percent(value: str) -> bytes:
    """Write a text in ASCII, as headers of HTTP and NATS want it."""
    return quote(value, safe=_PRINTABLE).encode()


# --- in ---


def read(message: Message, prefix: str) -> tuple[CloudEvent, Any] | None:
    """Take an event and its data out of a message; nothing when it does not claim to be a CloudEvent."""
    kind = (message.header("content-type") or b"").lower()
    if not kind.startswith(b"application/cloudevents"):
        return None if message.header(f"{prefix}specversion") is None else _binary(message, prefix)
    if kind.startswith(BATCH.encode()):
        raise Unparsable("a batch of CloudEvents in one message is not taken: send them one by one")
    if not kind.startswith(STRUCTURED.encode()):
        raise Unparsable(f"the format {_short(kind)} of CloudEvents is unknown here: send JSON")
    return _structured(message, prefix)


def read_batch(body: bytes, most: int) -> list[tuple[CloudEvent, Any]]:
    """Take events and their data out of a JSON list of them."""
    documents = read_json(body)
    if not isinstance(documents, list):
        raise Unparsable(f"a batch of CloudEvents is a JSON list, not {_kind(documents)}")
    if len(documents) > most:
        raise Unparsable(f"a batch has at most {most:,} events, not {len(documents):,}")
    return [_placed(place, document) for place, document in enumerate(documents)]


def _placed(place: int, document: Any) -> tuple[CloudEvent, Any]:
    try:
        return _document(document, {})
    except Unparsable as error:
        raise Unparsable(str(error), at=f"/{place}{error.at}") from error


def _structured(message: Message, prefix: str) -> tuple[CloudEvent, Any]:
    return _document(read_json(_body(message)), _plain_headers(message, prefix))


def _document(document: Any, headers: dict[str, str]) -> tuple[CloudEvent, Any]:
    if not isinstance(document, dict):
        raise Unparsable(f"a CloudEvent is a JSON object, not {_kind(document)}")
    attributes = {name: _text(name, value) for name, value in document.items() if name not in ("data", "data_base64")}
    if document.get("data_base64") is None:
        return _made(attributes, headers), document.get("data")
    if "data" in document:
        raise Unparsable("both data and data_base64 are given: a CloudEvent has one of them", at="/data")
    data = _data(_unbase(document["data_base64"]), attributes.get("datacontenttype") or "")
    return _made(attributes, headers), data


def _binary(message: Message, prefix: str) -> tuple[CloudEvent, Any]:
    attributes: dict[str, str | None] = {}
    decoded = _unpercent if prefix == "ce-" else _utf8
    for name, value in message.headers:
        if name.lower().startswith(prefix):
            attributes[name[len(prefix) :].lower()] = decoded(name, value)
    kind = _utf8("content-type", message.header("content-type") or JSON.encode())
    data = _data(message.body, kind) if message.body else None
    if message.key is not None and PARTITION_KEY not in attributes:
        attributes[PARTITION_KEY] = _utf8("key", message.key)
    return _made(attributes, _plain_headers(message, prefix)), data


def _made(attributes: Mapping[str, str | None], headers: dict[str, str]) -> CloudEvent:
    version = attributes.get("specversion")
    if version != SPECVERSION:
        raise Unparsable(
            f"specversion {_short(version)} is unknown here: this is CloudEvents {SPECVERSION}", at="/specversion"
        )
    for name in ("id", "type", "source"):
        if not attributes.get(name):
            raise Unparsable(f"the CloudEvent has no {name}", at=f"/{name}")
    extensions = {name: value for name, value in attributes.items() if name not in _ATTRIBUTES and value}
    for name in extensions.keys() - _OURS:
        if not _EXTENSION.fullmatch(name):
            message = f"{_short(name)} cannot name an attribute of a CloudEvent: a to z and 0 to 9 only"
            raise Unparsable(message, at=_pointer(name))
    headers |= _unbundled(extensions.pop(BUNDLE, None))
    headers |= {name: value for name, value in extensions.items() if name not in _OURS}
    if SITE in extensions:
        headers[SITE_HEADER] = extensions[SITE]
    return CloudEvent(
        id=str(attributes["id"]), type=str(attributes["type"]), source=str(attributes["source"]),
        subject=attributes.get("subject"), time=attributes.get("time"), extensions=extensions, headers=headers,
    )  # fmt: skip


def _unbundled(text: str | None) -> dict[str, str]:
    bundle = read_json(text.encode()) if text else {}
    if not isinstance(bundle, dict) or not all(isinstance(value, str) for value in bundle.values()):
        raise Unparsable(f"the attribute {BUNDLE} is not a JSON object of texts")
    return {name: value for name, value in bundle.items() if not name.startswith(OURS)}


def _plain_headers(message: Message, prefix: str) -> dict[str, str]:
    """Keep what else was said, as far as it is text; nothing is lost for a stray byte in a header of no concern."""
    kept = ((name, value) for name, value in message.headers if not _RESERVED.match(name))
    return {name: value.decode(errors="replace") for name, value in kept if not name.lower().startswith(prefix)}


def _body(message: Message) -> bytes:
    if message.body is None:
        raise Unparsable("a tombstone: the message has no body")
    if not message.body:
        raise Unparsable("the body is empty")
    return message.body


def read_json(body: bytes | None) -> Any:
    """Read a JSON text as strictly as it can be stored again."""
    if body is None:
        raise Unparsable("a tombstone: the message has no body")
    if body[:1] == b"\0" and len(body) >= _SCHEMA_HEAD:
        schema = int.from_bytes(body[1:_SCHEMA_HEAD], "big")
        raise Unparsable(f"schema id {schema} is unknown here: give the intake parse=… that asks your registry for it")
    try:
        return parse_strict(body)
    except UnicodeDecodeError as error:
        raise Unparsable(f"the body is not UTF-8 at byte {error.start:,}") from error
    except PayloadRefused as error:
        raise Unparsable(str(error)) from error
    except ValueError as error:
        raise Unparsable(f"the body is not JSON: {str(error)[:200]}") from error


def _is_json(kind: str) -> bool:
    essence = kind.partition(";")[0].strip().lower()
    return essence.endswith(("/json", "+json"))


def _data(body: bytes, kind: str) -> Any:
    """Read data by its kind: JSON, text as text, anything else in base64 beside its kind."""
    if _is_json(kind):
        return read_json(body)
    if kind.lower().startswith("text/"):
        return _utf8("body", body)
    return {"datacontenttype": kind, "data_base64": base64.b64encode(body).decode()}


def _unbase(text: Any) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, TypeError, ValueError) as error:
        raise Unparsable(f"data_base64 is not base64: {str(error)[:200]}", at="/data_base64") from error


def _text(name: str, value: Any) -> str | None:
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    message = f"the attribute {_short(name)} is {_kind(value)}: a text, a whole number or a boolean is allowed"
    raise Unparsable(message, at=_pointer(name))


def _utf8(name: str, value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError as error:
        raise Unparsable(f"{_short(name)} is not UTF-8 at byte {error.start:,}") from error


def _unpercent(name: str, value: bytes) -> str:
    text = _utf8(name, value)
    if "\N{REPLACEMENT CHARACTER}" in text:  # a driver has decoded it before us
        raise Unparsable(f"{_short(name)} is not UTF-8")
    try:
        return unquote(text, errors="strict")
    except UnicodeDecodeError as error:
        raise Unparsable(f"{_short(name)} is not UTF-8 behind its percent signs") from error


def _pointer(name: str) -> str:
    return "/" + name[:_SHOWN].replace("~", "~0").replace("/", "~1")


def _kind(value: Any) -> str:
    names = {dict: "an object", list: "a list", str: "a text", bool: "a boolean", int: "a number", float: "a number"}
    return names.get(type(value), "null")


def _short(value: object) -> str:
    shown = value.decode(errors="replace") if isinstance(value, bytes) else str(value)
    return repr(shown if len(shown) <= _SHOWN else shown[:_SHOWN] + "…")
