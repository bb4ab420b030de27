"""Spool: two sets of keys and values, of any size, compared in bounded memory.

Both sides are written to a temporary SQLite database, which goes to disk when it outgrows its cache and is gone with
its connection. Keys are texts; values are compared as JSON, in which the order of an object's fields says nothing and
1 is the same number as 1.0. A key that comes twice and a value that is not JSON are refused: nothing has been compared
by then. A spool belongs to one thread.
"""

import json
import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from inspect import isgenerator
from itertools import islice
from threading import Event
from typing import Any, Final, Literal
from uuid import UUID

from redrive.errors import NotComparable, PayloadRefused
from redrive.payload import DEFAULT_LIMITS, Limits, check_text, encode

Side = Literal["desired", "actual"]

CHUNK: Final = 5_000
KEY_LIMIT: Final = 512
_CACHE_KIB: Final = 65_536
_PAGE: Final = 1_000
_SHOWN: Final = 80

_INSERT: Final[dict[Side, str]] = {
    "desired": "insert into desired values (?, ?)",
    "actual": "insert into actual values (?, ?)",
}
_THERE: Final[dict[Side, str]] = {
    "desired": "select 1 from desired where key = ?",
    "actual": "select 1 from actual where key = ?",
}
_COMPARED: Final = """
    select (select count(*) from desired)
         + (select count(*) from actual a where not exists (select 1 from desired d where d.key = a.key))
"""
_DIFFERENCES: Final = """
    select d.key, d.value, a.value, a.key is not null
    from desired d left join actual a on a.key = d.key
    where a.key is null or a.value <> d.value
    union all
    select a.key, null, a.value, 0
    from actual a where not exists (select 1 from desired d where d.key = a.key)
"""


@dataclass(frozen=True, slots=True)
class Difference:
    """A key whose sides differ; the values are JSON text, none where the side does not have the key."""

    key: str
    kind: Literal["missing", "extra", "different"]
    desired: str | None
    actual: str | None


class Spool:
    """What should be, and what is."""

    def __init__(self, limits: Limits = DEFAULT_LIMITS) -> None:
        # Half: an event and a finding carry both values.
        self._limits = Limits(max(1, limits.max_bytes // 2), limits.max_depth)
        self._database = sqlite3.connect("", isolation_level=None, check_same_thread=False)
        self._database.execute(f"pragma cache_size = -{_CACHE_KIB}")
        for side in ("desired", "actual"):
            self._database.execute(f"create table {side} (key text primary key, value text not null) without rowid")

    def close(self) -> None:
        self._database.close()

    def fill(self, side: Side, pairs: Any, stop: Event) -> None:
        """Take one side in: a mapping, or anything that gives pairs. ``stop`` ends it early."""
        items = pairs.items() if isinstance(pairs, Mapping) else pairs
        if isinstance(items, str | bytes) or not isinstance(items, Iterable):
            raise NotComparable(
                f"{side} gave a {type(pairs).__qualname__}: give a mapping, or pairs of a key and a value"
            )
        try:
            walk = iter(items)
            while not stop.is_set() and (chunk := list(islice(walk, CHUNK))):
                self.put(side, chunk)
        finally:
            if isgenerator(items):
                items.close()  # here, in the thread where it ran

    def put(self, side: Side, pairs: list[Any]) -> None:
        """Take some pairs in."""
        rows = [self._row(side, pair) for pair in pairs]
        self._database.execute("begin")
        try:
            self._database.executemany(_INSERT[side], rows)
        except sqlite3.IntegrityError:
            self._database.execute("rollback")
            raise NotComparable(
                f"{side} has the key {self._twice(side, rows)!r} twice: a key stands for one thing"
            ) from None
        self._database.execute("commit")

    def _row(self, side: Side, pair: Any) -> tuple[str, str]:
        try:
            key, value = pair
        except (TypeError, ValueError):
            raise NotComparable(f"{side} gave {_short(pair)}: give pairs of a key and a value") from None
        name = _key(side, key)
        try:
            return name, encode(value, self._limits, "value", in_order=True)
        except PayloadRefused as error:
            raise NotComparable(f"{side} of key {name!r} cannot be compared: {error}") from error

    def _twice(self, side: Side, rows: list[tuple[str, str]]) -> str:
        seen: set[str] = set()
        for key, _ in rows:
            if key in seen or self._database.execute(_THERE[side], (key,)).fetchone():
                return key
            seen.add(key)
        return "?"

    def compared(self) -> int:
        """Count the keys of both sides."""
        (count,) = self._database.execute(_COMPARED).fetchone()
        return int(count)

    def differences(self) -> Iterator[list[Difference]]:
        """Walk through what differs, some at a time."""
        cursor = self._database.execute(_DIFFERENCES)
        while rows := cursor.fetchmany(_PAGE):
            found = [_difference(*row) for row in rows if not (row[3] and same(row[1], row[2]))]
            if found:
                yield found


def canonical(value: Any) -> str:
    """Write a value as the text in which values are compared."""
    return encode(value, what="value", in_order=True)


def same(one: str, other: str) -> bool:
    """Compare two values by their JSON."""
    return one == other or _alike(json.loads(one), json.loads(other))


def _alike(one: Any, other: Any) -> bool:
    if isinstance(one, bool) or isinstance(other, bool):  # to Python, True is 1
        return one is other
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_alike(one[name], other[name]) for name in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(_alike(*both) for both in zip(one, other, strict=True))
    return bool(one == other)


def _difference(key: str, desired: str | None, actual: str | None, both: int) -> Difference:
    kind: Literal["missing", "extra", "different"] = "different" if both else "extra" if desired is None else "missing"
    return Difference(key, kind, desired, actual)


def _key(side: Side, key: Any) -> str:
    text = str(key) if isinstance(key, int | UUID) and not isinstance(key, bool) else key
    if not isinstance(text, str):
        raise NotComparable(f"{side} has the key {_short(key)}: a key is a text, a whole number or a UUID")
    try:
        return check_text(text, "the key", KEY_LIMIT)
    except PayloadRefused as error:
        raise NotComparable(f"{side} has the key {_short(key)}: {error}") from error


def _short(value: object) -> str:
    with suppress(Exception):  # a stranger's __repr__
        return repr(value)[:_SHOWN]
    return f"a {type(value).__qualname__}"
