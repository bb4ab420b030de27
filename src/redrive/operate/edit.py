"""Edit: change single fields of a payload, and show what changed.

A change is written `payload.a.b=1` or, to take a field out, `payload.a.b`. Names that hold dots or quotes are written
as JSON strings, and a number counts the elements of a list from 0. What makes an event this event cannot be edited.
"""

import json
import re
from collections.abc import Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Any, Final

from redrive.errors import PayloadRefused, RedriveError, Refused
from redrive.payload import parse_strict

_IDENTITY: Final = frozenset({
    "id", "type", "source", "target", "subject", "key", "idempotency_key", "retry_key", "correlation_id", "corr",
    "causation_id", "ordering_key", "headers", "header", "created_at",
})  # fmt: skip
_STEP: Final = re.compile(r'\.(?:("(?:[^"\\]|\\.)*")|([^."=\s]+))')
_HEAD: Final = re.compile(r"[^.=\s]*")


class BadEdit(RedriveError, ValueError):
    """A change cannot be meant like this, or does not fit the payload."""


@dataclass(frozen=True, slots=True)
class Change:
    """One field that gets a value, or goes."""

    path: tuple[str, ...]
    value: Any = None
    gone: bool = False

    @property
    def place(self) -> str:
        """The field as it is written."""
        return written(self.path)


def assignment(text: str) -> Change:
    """Read ``payload.a.b=1``: the value is JSON if it can be, else it is text."""
    path, end = _path(text)
    if text[end : end + 1] != "=":
        raise BadEdit(f"{text[:64]!r} sets nothing: write payload.field=value")
    said = text[end + 1 :]
    try:
        value = parse_strict(said)
    except PayloadRefused:  # JSON, but not as it would be stored
        raise
    except ValueError:
        value = said
    return Change(path, value)


def assigned(field: str, value: Any) -> Change:
    """Read ``payload.a.b``, a field that gets a value."""
    return replace(removal(field), value=value, gone=False)


def removal(text: str) -> Change:
    """Read ``payload.a.b``, a field to be taken out."""
    path, end = _path(text)
    if text[end:]:
        raise BadEdit(f"{text[:64]!r} is not a field: write payload.field, without a value")
    return Change(path, gone=True)


def _path(text: str) -> tuple[tuple[str, ...], int]:
    head = _HEAD.match(text)
    assert head is not None
    field, end = head[0], head.end()
    if field in _IDENTITY:
        raise Refused(
            f"{field} cannot be edited: by it the event is known to others, and whether its effect has happened. "
            "Discard this one and publish a new event instead"
        )
    if field == "generation":
        raise Refused("the generation is not part of the payload: say it with --generation")
    if field != "payload":
        raise BadEdit(f"{text[:64]!r} is not a field of the payload: write payload.field")
    path = []
    while (step := _STEP.match(text, end)) is not None:
        path.append(_name(step[1]) if step[1] else step[2])
        end = step.end()
    if end < len(text) and text[end] != "=":
        raise BadEdit(
            f"the path {text[:64]!r} cannot be read: names are joined by dots; quote one that has other signs"
        )
    if not path:
        raise BadEdit("this would replace the whole payload: say that with --payload")
    return tuple(path), end


def _name(quoted: str) -> str:
    try:
        return str(json.loads(quoted))
    except ValueError:
        raise BadEdit(f"the name {quoted[:64]} is not a JSON string") from None


def written(path: Sequence[str]) -> str:
    """Write a path the way it is read."""
    steps = (name if re.fullmatch(r'[^."=\s]+', name) else json.dumps(name, ensure_ascii=False) for name in path)
    return ".".join(("payload", *steps))


# --- applying ---


def edited(payload: Any, changes: Sequence[Change]) -> Any:
    """Return a copy of the payload with the changes made, one after the other."""
    copy = deepcopy(payload)
    for change in changes:
        _apply(copy, change)
    return copy


def _apply(payload: Any, change: Change) -> None:
    *way, last = change.path
    place = payload
    for depth, name in enumerate(way, 1):
        place = _step(place, name, change, change.path[: depth - 1])
    if isinstance(place, list):
        index = _index(place, last, change.path)
        if change.gone:
            del place[index]
        else:
            place[index] = change.value
        return
    _insist_on_object(place, change.path[:-1])
    if not change.gone:
        place[last] = change.value
    elif last in place:
        del place[last]
    else:
        raise BadEdit(f"there is no {change.place} to take out")


def _step(place: Any, name: str, change: Change, so_far: Sequence[str]) -> Any:
    if isinstance(place, list):
        return place[_index(place, name, (*so_far, name))]
    _insist_on_object(place, so_far)
    if name not in place:
        if change.gone:
            raise BadEdit(f"there is no {change.place} to take out")
        place[name] = {}
    return place[name]


def _insist_on_object(place: Any, path: Sequence[str]) -> None:
    if not isinstance(place, dict):
        raise BadEdit(f"{written(path)} is {_kind(place)}, which has no fields: set it as a whole, or edit another one")


def _index(place: list[Any], name: str, path: Sequence[str]) -> int:
    if not re.fullmatch(r"[0-9]{1,9}", name) or int(name) >= len(place):
        length = "empty" if not place else f"0 to {len(place) - 1}"
        raise BadEdit(f"{written(path)} is not there: {written(path[:-1])} is a list ({length}), count its elements")
    return int(name)


def _kind(value: Any) -> str:
    names = {bool: "true or false", int: "a number", float: "a number", str: "text", list: "a list", dict: "an object"}
    return "null" if value is None else names[type(value)]


# --- showing ---


@dataclass(frozen=True, slots=True)
class Difference:
    """One field as it was and as it is; ``has_before`` and ``has_after`` say whether it was or is there at all."""

    path: tuple[str, ...]
    before: Any
    after: Any
    has_before: bool = True
    has_after: bool = True

    @property
    def place(self) -> str:
        """The field as it is written."""
        return written(self.path)

    def to_json(self) -> dict[str, Any]:
        """Return a plain dict; what was or is not there is left out."""
        told: dict[str, Any] = {"field": self.place}
        if self.has_before:
            told["before"] = self.before
        if self.has_after:
            told["after"] = self.after
        return told


def differences(before: Any, after: Any) -> list[Difference]:
    """Say which fields differ."""
    return list(_differences((), before, after))


def _differences(path: tuple[str, ...], before: Any, after: Any) -> Iterator[Difference]:
    if isinstance(before, dict) and isinstance(after, dict):
        for name in before | after:
            if name in before and name in after:
                yield from _differences((*path, name), before[name], after[name])
            else:
                yield Difference((*path, name), before.get(name), after.get(name), name in before, name in after)
    elif isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        for place, (one, two) in enumerate(zip(before, after, strict=True)):
            yield from _differences((*path, str(place)), one, two)
    elif json.dumps(before, sort_keys=True) != json.dumps(after, sort_keys=True):  # 1 and true are equal in Python
        yield Difference(path, before, after)
