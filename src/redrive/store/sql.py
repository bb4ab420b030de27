"""SQL as files: one verb, one file, the same names for every store.

Parameters are written ``:name`` in the files. ``Statement`` turns that into the style a driver wants, so that one
text serves our own connections and the caller's, whatever library the caller uses.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

_PARAMETER = re.compile(r"(?<![:\w]):([a-z_]+)")
_COMMENT = re.compile(r"--[^\n]*")
_NEEDS = re.compile(r"^-- Needs: (\d+)$", re.MULTILINE)
_PLACE = re.compile(r"\{([a-z]+)\}")

FIRST_ROLLING = 14
"""From this schema on a database says which code may work on it; earlier code wants the very schema that it knows."""

Clauses = Sequence[str] | Mapping[str, str]
"""Text of ours for the places that a statement leaves open."""


@dataclass(frozen=True, slots=True)
class Statement:
    """One SQL statement with named parameters, in every style (made once: it would cost 80 µs each time)."""

    verb: str
    text: str
    names: tuple[str, ...]
    numbered: str  # with ``$1, $2 …`` (asyncpg)
    positional: str  # with ``%s`` for every occurrence (psycopg, Django)
    occurrences: tuple[str, ...]  # the names in the order in which ``positional`` wants their values

    @cache  # noqa: B019 - statements live as long as the process
    def ordered(self, order: tuple[str, ...]) -> str:
        """Write the text with ``?1, ?2 …`` for values in this order (sqlite3; a third faster than by name)."""
        place = {name: f"?{number}" for number, name in enumerate(order, 1)}
        return _PARAMETER.sub(lambda match: place[match[1]], self.text)

    def values(self, parameters: Mapping[str, Any]) -> list[Any]:
        """Put the values into the order of ``numbered``."""
        return [parameters[name] for name in self.names]


def with_clauses(query: Statement, clauses: Clauses) -> Statement:
    """Put conditions into the places that a file leaves for them: ``{where}``, or several by their names."""
    if "{" not in query.text:
        return query
    parts = clauses if isinstance(clauses, Mapping) else {"where": "\n".join(clauses)}
    return statement(query.verb, _PLACE.sub(lambda match: parts[match[1]], query.text))


def statement(verb: str, text: str) -> Statement:
    """Read a statement: comments are for the reader, the driver gets the rest."""
    bare = _COMMENT.sub("", text).strip()
    occurrences = tuple(_PARAMETER.findall(bare))
    names = tuple(dict.fromkeys(occurrences))
    place = {name: f"${number}" for number, name in enumerate(names, 1)}
    return Statement(
        verb,
        bare,
        names,
        numbered=_PARAMETER.sub(lambda match: place[match[1]], bare),
        positional=_PARAMETER.sub("%s", bare.replace("%", "%%")),
        occurrences=occurrences,
    )


@cache
def load(store: str, verb: str) -> Statement:
    """Load ``<store>/<verb>.sql``."""
    return statement(verb, _folder(store).joinpath(f"{verb}.sql").read_text(encoding="utf-8"))


@cache
def migrations(store: str) -> Sequence[tuple[int, str, str]]:
    """List the migrations of a store as (version, name, text), in order."""
    found = []
    for entry in _folder(store).joinpath("migrations").iterdir():
        if entry.name.endswith(".sql"):
            number, _, name = entry.name.removesuffix(".sql").partition("_")
            found.append((int(number), name, entry.read_text(encoding="utf-8")))
    return sorted(found)


def needs(store: str, version: int) -> int:
    """Say which migration the code must know that works on this schema: the last one that did not only add.

    Such a one says so in a line of its own, ``-- Needs: 15``. None before the 14th let older code go on.
    """
    said = [
        int(match[1]) for number, _, text in migrations(store) if number <= version for match in _NEEDS.finditer(text)
    ]
    return max([min(version, FIRST_ROLLING), *said])


def _folder(store: str) -> Any:
    return resources.files("redrive.store").joinpath(store)
