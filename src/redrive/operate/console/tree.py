"""Tree: a payload as lines, so that it can be read without a script. Large ones are cut."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from redrive.mask import HIDDEN

_MOST_LINES: Final = 400
_LONGEST: Final = 2_000
_DEEPEST_INDENT: Final = 12


@dataclass(frozen=True, slots=True)
class Line:
    """One line: how far in, which field, what kind of value, and its text."""

    indent: int
    name: str
    kind: str
    text: str
    path: str = ""


def lines(value: Any) -> list[Line]:
    """Write a payload as lines."""
    found: list[Line] = []
    for each in _walk(value, "", 0, "payload"):
        if len(found) >= _MOST_LINES:
            found.append(Line(0, "", "cut", f"… cut after {_MOST_LINES} lines"))
            break
        found.append(each)
    return found


def _walk(value: Any, name: str, depth: int, path: str) -> Iterator[Line]:
    # A stack instead of recursion: what people publish may be nested more deeply than Python likes to call.
    waiting: list[tuple[Any, str, int, str]] = [(value, name, depth, path)]
    while waiting:
        item, called, level, place = waiting.pop()
        indent = min(level, _DEEPEST_INDENT)
        if isinstance(item, dict) and item:
            if level:
                yield Line(indent - 1, called, "object", _size(len(item), "field"), place)
            waiting += [(inner, str(key), level + 1, f"{place}.{key}") for key, inner in reversed(item.items())]
        elif isinstance(item, list) and item:
            yield Line(max(0, indent - 1), called, "list", _size(len(item), "element"), place)
            waiting += [(inner, str(at), level + 1, f"{place}.{at}") for at, inner in reversed(list(enumerate(item)))]
        else:
            yield Line(max(0, indent - 1), called, _kind(item), _text(item), place)


def _size(number: int, noun: str) -> str:
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def _kind(item: Any) -> str:
    if item == HIDDEN:
        return "hidden"
    names = {bool: "word", int: "number", float: "number", str: "text", dict: "object", list: "list"}
    return "word" if item is None else names.get(type(item), "text")


def _text(item: Any) -> str:
    said = item if item == HIDDEN else json.dumps(item, ensure_ascii=False)
    return said if len(said) <= _LONGEST else f"{said[:_LONGEST]}… ({len(said):,} characters)"
