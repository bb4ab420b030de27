"""CloudEvents 1.0 over HTTP: structured, binary and in batches, read into what ``publish`` takes.

``source`` and ``id`` together name an event, so a second one with both, sent while the first is live, is that event.
``correlationid``, ``causationid``, ``partitionkey`` and ``idempotencykey`` have a place of ours; other attributes are
kept as headers.
"""

import base64
import binascii
import hashlib
import json
import re
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import unquote

from redrive.app import Draft
from redrive.event import Options
from redrive.operate.web.problems import INVALID, NOT_JSON, Problem
from redrive.publish import KEY_LIMIT

STRUCTURED: Final = "application/cloudevents+json"
BATCH: Final = "application/cloudevents-batch+json"
PREFIX: Final = "ce-"
MOST: Final = 1_000
_VERSION: Final = "1.0"
_ATTRIBUTE: Final = re.compile(r"[a-z0-9]+")
_PLACES: Final = {"subject": "subject", "correlationid": "correlation_id", "causationid": "causation_id",
                  "partitionkey": "ordering_key", "idempotencykey": "idempotency_key"}  # fmt: skip
_OURS: Final = frozenset({"specversion", "id", "type", "source", *_PLACES})
_LONGEST: Final = 200


def is_binary(headers: Mapping[str, str]) -> bool:
    """Say whether the attributes are in the headers."""
    return f"{PREFIX}specversion" in headers


def read(kind: str, headers: Mapping[str, str], body: bytes) -> list[Draft]:
    """Read the events of a request."""
    if kind == BATCH:
        batch = read_json(body)
        if not isinstance(batch, list):
            raise _wrong("", "a batch of CloudEvents is a JSON list")
        if len(batch) > MOST:
            raise _wrong("", f"a batch has at most {MOST:,} events")
        return [_structured(each, f"/{place}") for place, each in enumerate(batch)]
    if kind == STRUCTURED:
        return [_structured(read_json(body), "")]
    attributes = {
        name[len(PREFIX) :].lower(): unquote(value)
        for name, value in headers.items()
        if name.lower().startswith(PREFIX)
    }
    return [_draft(attributes, _data(body, headers.get("content-type", "")) if body else None, "")]


def _structured(document: Any, place: str) -> Draft:
    if not isinstance(document, dict):
        raise _wrong(place, "a CloudEvent is a JSON object")
    attributes = {
        name: _text(value, f"{place}/{name}")
        for name, value in document.items()
        if name not in ("data", "data_base64") and value is not None
    }
    if document.get("data_base64") is None:
        return _draft(attributes, document.get("data"), place)
    if "data" in document:
        raise _wrong(f"{place}/data", "a CloudEvent has data or data_base64, not both")
    try:
        body = base64.b64decode(document["data_base64"], validate=True)
    except (binascii.Error, TypeError, ValueError):
        raise _wrong(f"{place}/data_base64", "this is not base64") from None
    return _draft(attributes, _data(body, attributes.get("datacontenttype", "")), place)


def _draft(attributes: Mapping[str, str], data: Any, place: str) -> Draft:
    if attributes.get("specversion") != _VERSION:
        raise _wrong(f"{place}/specversion", f"this is CloudEvents {_VERSION}")
    for name in ("id", "type", "source"):
        if not attributes.get(name):
            raise _wrong(f"{place}/{name}", f"a CloudEvent has a {name}")
    for name in attributes:
        if not _ATTRIBUTE.fullmatch(name):
            raise _wrong(f"{place}/{name[:64]}", "an attribute is named by a to z and 0 to 9")
    key = _key(attributes["source"], attributes["id"])
    options: Options = {"source": attributes["source"], "idempotency_key": key, "retry_key": key}
    for name, ours in _PLACES.items():
        if attributes.get(name):
            options[ours] = attributes[name]  # type: ignore[literal-required]
    options["headers"] = {name: value for name, value in attributes.items() if name not in _OURS}
    return attributes["type"], data, options


def _key(source: str, id_: str) -> str:
    key = f"{source}#{id_}"
    return key if len(key) <= KEY_LIMIT else hashlib.sha256(key.encode("utf-8", "surrogatepass")).hexdigest()


def _text(value: Any, place: str) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    raise _wrong(place, "an attribute is a text, a whole number or a boolean")


def _data(body: bytes, kind: str) -> Any:
    """Read data by its kind: JSON, text as text, anything else in base64 beside its kind."""
    essence = kind.partition(";")[0].strip().lower()
    if not essence or essence.endswith(("/json", "+json")):
        return read_json(body)
    if essence.startswith("text/"):
        return body.decode("utf-8", "replace")
    return {"datacontenttype": kind[:_LONGEST], "data_base64": base64.b64encode(body).decode("ascii")}


def read_json(body: bytes) -> Any:
    """Read a JSON text as strictly as it can be stored again."""
    try:
        return json.loads(body.decode("utf-8"), parse_constant=_no_constant)
    except UnicodeDecodeError as error:
        raise Problem(NOT_JSON, f"the body is not UTF-8 at byte {error.start:,}") from None
    except json.JSONDecodeError as error:
        where = f"line {error.lineno}, column {error.colno}"
        raise _wrong("", f"the body is not JSON: {error.msg} ({where})") from None
    except (ValueError, RecursionError) as error:
        raise _wrong("", f"the body is not JSON: {str(error)[:_LONGEST]}") from None


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is no JSON number; send null or a string")


def _wrong(place: str, what: str) -> Problem:
    return Problem(INVALID, what, errors=[{"in": "body", "pointer": place or "/", "detail": what}])
