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
# PostgreSQL: a name in our schema, or a text that is about the schema: a channel, a lock, a setting, a catalogue entry.
# Event types such as 'redrive.compensate' are texts too, and stay.
_IN_SCHEMA = re.compile(
    r"(?P<about>(?:(?:pg_notify|hashtextextended|set_config|current_setting)\(|schemaname = )')"
    r"redrive(?P<rest>\b[^']*')"
    r"|'redrive(?P<class>\.[a-z_]+'::regclass)"
    r"|(?P<kept>'[^']*'|--[^\n]*)"
    r"|(?P<made>create schema if not exists )redrive\b"
    r"|(?<![\w.])redrive(?=\.[a-z_])"
)
# SQLite: the prefix of our tables, indexes and triggers.
_PREFIXED = re.compile(r"(?P<kept>'[^']*'|--[^\n]*|\bredrive_id\b)|(?<![\w.])redrive(?=_[a-z])")

SCHEMA = "redrive"
"""The schema of our tables on PostgreSQL, and their prefix on SQLite, unless an app names another."""

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
def load(store: str, verb: str, schema: str = SCHEMA) -> Statement:
    """Load ``<store>/<verb>.sql`` for tables in this schema."""
    text = _folder(store).joinpath(f"{verb}.sql").read_text(encoding="utf-8")
    return statement(verb, in_schema(store, text, schema))


@cache
def in_schema(store: str, text: str, schema: str) -> str:
    """Rewrite SQL of ours, which names the default schema, for tables in another one."""
    if schema == SCHEMA:
        return text
    return (_PREFIXED if store == "sqlite" else _IN_SCHEMA).sub(lambda match: _renamed(match, schema), text)


def _renamed(match: re.Match[str], schema: str) -> str:
    found: dict[str, str | None] = match.groupdict()
    if found["kept"] is not None:
        return found["kept"]
    if match.re is _PREFIXED:
        return schema
    if found["about"] is not None:
        return f"{found['about']}{schema}{found['rest']}"
    quoted = f'"{schema}"'  # it may be a word of SQL, like order
    return f"'{quoted}{found['class']}" if found["class"] is not None else f"{found['made'] or ''}{quoted}"


@cache
def migrations(store: str, schema: str = SCHEMA) -> Sequence[tuple[int, str, str]]:
    """List the migrations of a store as (version, name, text), in order."""
    found = []
    for entry in _folder(store).joinpath("migrations").iterdir():
        if entry.name.endswith(".sql"):
            number, _, name = entry.name.removesuffix(".sql").partition("_")
            found.append((int(number), name, in_schema(store, entry.read_text(encoding="utf-8"), schema)))
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
