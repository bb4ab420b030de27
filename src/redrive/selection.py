"""Selection: which events are meant, in one line of text.

``type:order.* class:missing,invalid -key:order-7 payload.currency:XOF age>1h text:"timed out"``: terms are joined by
*and*, alternatives by commas; ``-`` or ``not`` turns a term round; ``*`` outside quotes is any text; a bare word is
looked for in the error. A text is read once (``parse``); a mistake in it is a ``SelectionError`` that points at it.

A selection can say itself back (``text``, ``sentence``), judge an event (``matches``, which defines what each term
means) and become conditions for either store (``where``), its values always bound. A term about something that an
event does not have is false, its negation true. Next: ``store`` runs it, ``operate`` plans a redrive with it.
"""

import json
import operator
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from difflib import get_close_matches
from typing import Any, Final, Literal
from uuid import UUID

from redrive.duration import ACCEPTED, format_duration, parse_duration
from redrive.errors import BadDuration, SelectionError
from redrive.event import ErrorClass, Event, Priority, Status
from redrive.instant import to_micros

__all__ = [
    # reading
    "parse",
    "dead_letters",
    # what was read
    "Selection",
    "Term",
    "Pattern",
    "JsonLiteral",
    "FIELDS",
    # bounds
    "MAX_LENGTH",
    "MAX_TERMS",
    "MAX_ALTERNATIVES",
]

MAX_LENGTH: Final = 4_096
MAX_TERMS: Final = 50
MAX_ALTERNATIVES: Final = 100
_MAX_STARS: Final = 10  # in one value
_MAX_DEPTH: Final = 64  # of a path: no payload is deeper by default

Dialect = Literal["sqlite", "postgres"]
_ORDERED: Final = (">", ">=", "<", "<=")
_COMPARE: Final[Mapping[str, Callable[[Any, Any], bool]]] = {
    ":": operator.eq, ">": operator.gt, ">=": operator.ge, "<": operator.lt, "<=": operator.le,
}  # fmt: skip
_REVERSED: Final = {">": "<", ">=": "<=", "<": ">", "<=": ">="}


# --- values ---


@dataclass(frozen=True, slots=True)
class Pattern:
    """Text with wildcards: what stands between them. A single part means exactly this text."""

    parts: tuple[str, ...]

    @property
    def is_exact(self) -> bool:
        return len(self.parts) == 1

    @property
    def is_anything(self) -> bool:
        """A lone ``*``: whatever it is, as long as there is something."""
        return self.parts == ("", "")

    def fits(self, text: str) -> bool:
        first, last = self.parts[0], self.parts[-1]
        if self.is_exact:
            return text == first
        at, end = len(first), len(text) - len(last)
        if at > end or not text.startswith(first) or not text.endswith(last):
            return False
        for part in self.parts[1:-1]:
            found = text.find(part, at, end)
            if found < 0:
                return False
            at = found + len(part)
        return True


@dataclass(frozen=True, slots=True)
class JsonLiteral:
    """A number, ``true``, ``false`` or ``null`` as it was written, to be compared with what a payload holds."""

    text: str

    @property
    def number(self) -> int | float | None:
        """The number, when it is one that every store can compare."""
        if not _JSON_LITERAL.fullmatch(self.text) or self.text in ("true", "false", "null"):
            return None
        if _WHOLE.fullmatch(self.text):
            whole = int(self.text)
            return whole if -_LARGEST <= whole <= _LARGEST else None
        value = float(self.text)
        return value if -_LARGEST_JSON <= value <= _LARGEST_JSON else None


@dataclass(frozen=True, slots=True)
class Term:
    """One condition: a field (and a path inside it), an operator of ``: > >= < <=``, and its alternatives."""

    field: str
    op: str
    values: tuple[Any, ...]
    negated: bool = False
    path: tuple[str | int, ...] = ()

    @property
    def text(self) -> str:
        kind = FIELDS[self.field]
        written = ",".join(kind.write(value) for value in self.values)
        return f"{'-' if self.negated else ''}{self.field}{kind.write_path(self.path)}{self.op}{written}"

    def matches(self, event: Event, now: datetime) -> bool:
        return FIELDS[self.field].holds(self, event, now) is not self.negated


@dataclass(frozen=True, slots=True)
class Selection:
    """Terms that must all hold. Without any, every event is meant."""

    terms: tuple[Term, ...] = ()

    @property
    def text(self) -> str:
        """The canonical form, on one line and printable; it parses to an equal selection."""
        return " ".join(term.text for term in self.terms)

    def matches(self, event: Event, now: datetime) -> bool:
        """Judge one event. This is what the conditions of ``where`` are tested against."""
        return all(term.matches(event, now) for term in self.terms)

    def where(self, dialect: Dialect, now: datetime) -> tuple[list[str], dict[str, Any]]:
        """Turn the terms into conditions and their values, for the end of a statement on the outbox."""
        bind = _Binder(dialect)
        clauses = []
        for term in self.terms:
            kind = FIELDS[term.field]
            condition = (kind.negation if term.negated else kind.condition)(term, bind, now)
            clauses.append(f"and ({condition})" if " or " in condition else f"and {condition}")
        return clauses, bind.values

    def sentence(self, now: datetime, count: int | None = None) -> str:
        """Say in English what is meant; times are UTC, and without a date when they are of today."""
        return _sentence(self.terms, now.astimezone(UTC), count)


def dead_letters(selection: Selection) -> Selection:
    """Narrow a selection to what stands in quarantine, unless it says itself which status or discarded ones it wants."""
    said = {term.field for term in selection.terms if not term.negated}
    added = [Term(name, ":", (value,)) for name, value in _QUARANTINE if name not in said]
    narrowed = Selection((*added, *selection.terms))
    if len(narrowed.terms) > MAX_TERMS or len(narrowed.text) > MAX_LENGTH:
        names = " and ".join(term.text for term in added)
        raise SelectionError(f"there is no room left for {names}: say less, or say that too", selection.text)
    return narrowed


_QUARANTINE: Final = (("status", Status.FAILED.value), ("discarded", False))


# --- reading ---


def parse(text: str) -> Selection:
    """Read a selection, or point at what is wrong with it."""
    if len(text) > MAX_LENGTH:
        reason = f"a selection has at most {MAX_LENGTH:,} characters, this one has {len(text):,}"
        raise SelectionError(reason, text, MAX_LENGTH)
    if (bad := _UNSTORABLE.search(text)) is not None:
        raise SelectionError("no database holds this character in its text: leave it out", text, bad.start())
    terms: list[Term] = []
    alternatives = 0
    at = _after_space(text, 0)
    while at < len(text):
        start = at
        term, at = _read_term(text, at)
        terms.append(term)
        alternatives += len(term.values)
        if len(terms) > MAX_TERMS:
            raise SelectionError(f"a selection has at most {MAX_TERMS} terms; this is one more", text, start)
        if alternatives > MAX_ALTERNATIVES:
            reason = (
                f"a selection has at most {MAX_ALTERNATIVES} values in all; with this term there are {alternatives}"
            )
            raise SelectionError(reason, text, start)
        at = _after_space(text, at)
    selection = Selection(tuple(terms))
    if len(text) > _ALWAYS_SHORT and len(selection.text) > MAX_LENGTH:
        reason = f"written out, this selection has more than {MAX_LENGTH:,} characters: shorten it"
        raise SelectionError(reason, text, MAX_LENGTH // 6)
    return selection


@dataclass(frozen=True, slots=True)
class _Raw:
    """A value as it stands in the text; ``plain`` when nothing in it was quoted, escaped or a wildcard."""

    source: str
    start: int
    end: int
    pattern: Pattern
    plain: bool

    @property
    def text(self) -> str:
        """The value, where a wildcard means nothing."""
        if not self.pattern.is_exact:
            raise self.error("there are no wildcards here")
        if not self.pattern.parts[0].strip():
            raise self.error("the value is empty")
        return self.pattern.parts[0]

    def error(self, reason: str) -> SelectionError:
        return SelectionError(reason, self.source, self.start, self.end - self.start)


def _read_term(text: str, at: int) -> tuple[Term, int]:
    start, negated = at, False
    if (negation := _NEGATION.match(text, at)) is not None:
        at, negated = negation.end(), True
        if at == len(text) or text[at].isspace():
            raise SelectionError("say what shall not hold: -class:missing, or: not class:missing", text, start)
        if _NEGATION.match(text, at):
            raise SelectionError("this is negated twice: leave both out", text, start, at + 1 - start)
    end = _HEAD.match(text, at).end()  # type: ignore[union-attr] - it may match nothing, but it matches
    if (found := _OPERATOR.match(text, end)) is None:
        name, path, op = "text", (), ":"
        _check_bare(text, at, end)
    else:
        name, path = _read_field(text, at, end)
        op, at = found[0], found.end()
    if op == "!=":
        op, negated = ":", not negated
    elif op == "=":
        op = ":"
    kind = FIELDS[name]
    if op not in kind.operators:
        hint = " ".join((":", "=", "!=", *kind.operators[1:])) if ":" in kind.operators else " ".join(kind.operators)
        reason = f"{name} cannot be compared by {op}: use {hint}" + ("" if op != ":" else ", twice for a range")
        raise SelectionError(reason, text, end, len(op))
    raws, at = _read_values(text, at)
    if op != ":" and len(raws) > 1:
        raise raws[1].error(f"{op} takes one value: write {name}{op}… once, or list alternatives behind {name}:")
    values = tuple(kind.read(raw, op) for raw in raws)
    if name == "discarded" and negated and len(values) == 1:
        values, negated = (not values[0],), False  # so that there is one way to say it, and indexes can serve
    return Term(name, op, values, negated, path), at


def _check_bare(text: str, at: int, end: int) -> None:
    if text[end : end + 1] in ('"', "\\"):
        raise _unfinished(text, end)
    word = text[at:end]
    if word.lower() == "and":
        raise SelectionError('terms are joined by "and" already: leave it out, or quote it', text, at, 3)
    if word.lower() == "or":
        raise SelectionError("alternatives are written type:a,b; quote the word to search for it", text, at, 2)
    if word.startswith("("):
        raise SelectionError("there are no brackets: all terms must hold; quote this to search for it", text, at)


def _read_field(text: str, at: int, end: int) -> tuple[str, tuple[str | int, ...]]:
    found = _NAME.match(text, at, end)
    if at == end:
        raise SelectionError("a field must stand right before this, without a space: age>1h", text, end)
    name = "" if found is None else found[0].lower().replace("_", "-")
    name = _ALIASES.get(name, name)
    rest = at if found is None else found.end()
    if name == "payload":
        return name, _read_path(text, rest, end)
    if name == "header" and text[rest:end].startswith("."):
        return name, (_read_name(text, rest + 1, end),)
    if name not in FIELDS or rest < end:
        raise _unknown_field(text, at, end)
    if name == "header":
        raise SelectionError("say which header: header.tenant:acme", text, at, end - at)
    return name, ()


def _unknown_field(text: str, at: int, end: int) -> SelectionError:
    written = text[at:end]
    known = [*FIELDS, *_ALIASES]
    close = get_close_matches(written[:40].lower().replace("_", "-"), known, 3)
    names = list(dict.fromkeys(_ALIASES.get(each, each) for each in close))
    hint = f"did you mean {_listed(names)}?" if names else f"there are {', '.join(FIELDS)}."
    return SelectionError(f"there is no field {_cut(written)}: {hint} Quote it to search for text", text, at, end - at)


def _read_path(text: str, at: int, end: int) -> tuple[str | int, ...]:
    path: list[str | int] = []
    while at < end:
        found = _STEP.match(text, at, end)
        if found is None or len(path) == _MAX_DEPTH:
            reason = 'a path goes on like .name, ."any name" or [0]'
            raise SelectionError(
                reason if found is None else f"a path has at most {_MAX_DEPTH} steps", text, at, end - at
            )
        name, quoted, index = found.groups()
        path.append(int(index) if index else _read_name(text, found.start() + 1, found.end()))
        at = found.end()
    return tuple(path)


def _read_name(text: str, at: int, end: int) -> str:
    """Read a name in a path. Quotes and backslashes in it could not be asked for on every version of SQLite."""
    name = text[at:end]
    if len(name) > 1 and name[0] == name[-1] == '"':
        name = name[1:-1]
    if not name or _NO_NAME.search(name):
        reason = "a name is not empty and holds no quotes, backslashes or control characters"
        raise SelectionError(reason, text, at, max(1, end - at))
    return name


def _read_values(text: str, at: int) -> tuple[list[_Raw], int]:
    raws = []
    while True:
        raw, at = _read_value(text, at)
        raws.append(raw)
        if text[at : at + 1] != ",":
            return raws, at
        at += 1


def _read_value(text: str, at: int) -> tuple[_Raw, int]:
    start, parts, plain = at, [""], True
    while (token := _TOKEN.match(text, at)) is not None:
        first = text[at]
        if first == "*":
            if parts[-1] or len(parts) == 1:  # two in a row are one
                parts.append("")
        elif first == '"':
            parts[-1] += _unescaped(text, at + 1, token.end() - 1)
        elif first == "\\":
            parts[-1] += _unescaped(text, at, token.end())
        else:
            parts[-1] += token[0]
        plain = plain and first not in '*"\\'
        at = token.end()
    if text[at : at + 1] in ('"', "\\"):
        raise _unfinished(text, at)
    if at == start:
        hint = ' (no space may stand there; an empty text is "")' if text[at:].strip() else ""
        raise SelectionError(f"a value is missing here{hint}", text, at)
    raw = _Raw(text, start, at, Pattern(tuple(parts)), plain)
    if len(parts) > _MAX_STARS + 1:
        raise raw.error(f"a value has at most {_MAX_STARS} wildcards")
    return raw, at


def _unfinished(text: str, at: int) -> SelectionError:
    if text[at] == '"':
        return SelectionError('this quote has no end: close it, or write \\" for the character', text, at)
    return SelectionError("nothing follows this backslash: write \\\\ for the character", text, at)


def _unescaped(text: str, start: int, end: int) -> str:
    inner = text[start:end]
    if "\\" not in inner:
        return inner

    def meaning(found: re.Match[str]) -> str:
        code = found[1]
        if len(code) > 1:
            code = chr(int(code[1:], 16))
            if not _UNSTORABLE.match(code):
                return code
        elif code in _ESCAPES:
            return _ESCAPES[code]
        elif not code.isalnum():
            return code
        reason = r'after a backslash stand " \ * , n r t or four digits like u00e9; write \\ for a backslash'
        raise SelectionError(reason, text, start + found.start(), len(found[0]))

    return _ESCAPE.sub(meaning, inner)


def _after_space(text: str, at: int) -> int:
    return _SPACE.match(text, at).end()  # type: ignore[union-attr] - it may match nothing, but it matches


def _instant(raw: _Raw) -> datetime:
    text = raw.text
    try:
        if not _INSTANT.fullmatch(text):
            raise ValueError(text)
        at = datetime.fromisoformat(text)
        at = at.replace(tzinfo=UTC) if at.tzinfo is None else at.astimezone(UTC)
        if not _FIRST_YEAR <= at.year < _LAST_YEAR:
            raise ValueError(text)
    except (ValueError, OverflowError):
        reason = f"{_cut(text)} is no date: write 2026-11-01, 2026-11-01T14:05 or 2026-11-01T14:05:30+01:00 (else UTC)"
        raise raw.error(reason) from None
    return at


def _span(raw: _Raw, *, signed: bool) -> timedelta:
    text = raw.text
    sign = -1 if signed and text.startswith("-") else 1
    try:
        return sign * timedelta(seconds=parse_duration(text[1:] if sign < 0 else text))
    except BadDuration:
        raise raw.error(f"{_cut(text)} is no duration: write {ACCEPTED}") from None


_SPACE: Final = re.compile(r"\s*")
_NEGATION: Final = re.compile(r"-|not(?:\s+|$)", re.IGNORECASE)
_HEAD: Final = re.compile(r'(?:[^\s":=<>!\\]|!(?!=)|\\.|"(?:[^"\\]|\\.)*+")*+', re.DOTALL)
_OPERATOR: Final = re.compile(r">=|<=|!=|[:=<>]")
_TOKEN: Final = re.compile(r'[^\s",\\*]++|\*|\\(?:u[0-9a-fA-F]{4}|.)|"(?:[^"\\]|\\.)*+"', re.DOTALL)
_ESCAPE: Final = re.compile(r"\\(u[0-9a-fA-F]{4}|.)", re.DOTALL)
_ESCAPES: Final = {"n": "\n", "r": "\r", "t": "\t"}
_NAME: Final = re.compile(r"[a-z_-]+", re.IGNORECASE | re.ASCII)
_STEP: Final = re.compile(r'\.(?:([^\s":=<>!,\\*.\[\]]+)|("[^"]*"))|\[([0-9]{1,6})\]')
_BARE_STEP: Final = re.compile(r'[^\s":=<>!,\\*.\[\]]+')
_BARE_HEADER: Final = re.compile(r'[^\s":=<>!,\\*]+')
_NO_NAME: Final = re.compile(r'["\\\x00-\x1f\x7f]')
_UNSTORABLE: Final = re.compile("[\x00\ud800-\udfff]")
_ALWAYS_SHORT: Final = 512  # six characters for each, and the long names of fifty fields: still below the limit
_WHOLE: Final = re.compile(r"-?[0-9]{1,19}")
_LARGEST: Final = 2**63 - 1
_LARGEST_JSON: Final = 1e200
_JSON_LITERAL: Final = re.compile(r"true|false|null|-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
_INSTANT: Final = re.compile(r"\d{4}-\d\d-\d\d(?:[T ]\d\d:\d\d(?::\d\d(?:\.\d{1,6})?)?(?:Z|[+-]\d\d:\d\d)?)?", re.ASCII)
_FIRST_YEAR, _LAST_YEAR = 1970, 9999
_FLAGS: Final = {"yes": True, "true": True, "no": False, "false": False}
_HEX: Final = re.compile(r"[0-9a-f]{1,32}")
_DIGITS: Final = 32
_UUID: Final = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_FINGERPRINT: Final = re.compile(r"[0-9]+:[0-9a-f]{16}")
_FOLD: Final = {upper: upper + 32 for upper in range(ord("A"), ord("Z") + 1)}


def _inside(pattern: Pattern) -> Pattern:
    """The same anywhere in a text, in small letters."""
    parts = [part.translate(_FOLD) for part in pattern.parts]
    first, last = [""] * (parts[0] != ""), [""] * (parts[-1] != "")
    return Pattern((*first, *parts, *last))


# --- kinds of fields: how a value is read, written, matched, asked for and said ---


@dataclass(frozen=True, slots=True)
class _Kind:
    operators: tuple[str, ...] = (":",)

    def read(self, raw: _Raw, op: str) -> Any:
        raise NotImplementedError

    def write(self, value: Any) -> str:
        raise NotImplementedError

    def write_path(self, path: tuple[str | int, ...]) -> str:
        return ""

    def holds(self, term: Term, event: Event, now: datetime) -> bool:
        """Judge the term without its negation."""
        raise NotImplementedError

    def condition(self, term: Term, bind: _Binder, now: datetime) -> str:
        """Write the term without its negation; it may come out as null, which is as good as false."""
        raise NotImplementedError

    def negation(self, term: Term, bind: _Binder, now: datetime) -> str:
        return f"({self.condition(term, bind, now)}) is not true"

    def said(self, term: Term, now: datetime) -> str:
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class _Text(_Kind):
    """A column of text, compared letter by letter, upper and lower case apart."""

    column: str = ""
    phrase: str = ""
    noun: str = ""

    def read(self, raw: _Raw, op: str) -> Pattern:
        return raw.pattern

    def write(self, value: Pattern) -> str:
        return _written(value)

    def expanded(self, pattern: Pattern) -> Sequence[Pattern]:
        return (pattern,)

    def holds(self, term: Term, event: Event, now: datetime) -> bool:
        held = getattr(event, self.column)
        return held is not None and any(each.fits(held) for value in term.values for each in self.expanded(value))

    def condition(self, term: Term, bind: _Binder, now: datetime) -> str:
        return _like(self.column, [each for value in term.values for each in self.expanded(value)], bind)

    def said(self, term: Term, now: datetime) -> str:
        if all(value.is_anything for value in term.values):
            return f"with any {self.noun}"
        return self.phrase.format(_listed(_shown(_written(value)) for value in term.values))


class _ErrorType(_Text):
    """``ConnectTimeout`` is also ``httpx.ConnectTimeout``."""

    __slots__ = ()

    def expanded(self, pattern: Pattern) -> Sequence[Pattern]:
        if pattern.parts[0] == "" and not pattern.is_exact:
            return (pattern,)
        return (pattern, Pattern(("", "." + pattern.parts[0], *pattern.parts[1:])))


class _Group(_Text):
    """A fingerprint or its beginning, with or without the version in front of the colon."""

    __slots__ = ()

    def read(self, raw: _Raw, op: str) -> Pattern:
        if raw.pattern.parts == ("",):
            raise raw.error("the value is empty: give a group, or the beginning of one")
        return raw.pattern

    def expanded(self, pattern: Pattern) -> Sequence[Pattern]:
        start = pattern.parts[0]
        if not pattern.is_exact or _FINGERPRINT.fullmatch(start):
            return (pattern,)
        return (Pattern((start, "")), *(() if ":" in start else (Pattern(("", ":" + start, "")),)))


class _Correlation(_Text):
    """The first event of a correlation is named by its own id."""

    __slots__ = ()

    def holds(self, term: Term, event: Event, now: datetime) -> bool:
        return Pattern((str(event.id),)) in term.values or super().holds(term, event, now)

    def condition(self, term: Term, bind: _Binder, now: datetime) -> str:
        ids = [value.parts[0] for value in term.values if value.is_exact and _UUID.fullmatch(value.parts[0])]
        own = [f"id = {bind(UUID(each) if bind.postgres else each)}" for each in ids]
        return " or ".join([super().condition(term, bind, now), *own])


class _Error(_Text):
    """The text of the last error: anywhere in it, A to Z like a to z.

    Other letters must have the right case: SQLite folds no others, and PostgreSQL would by its locale.
    """

    __slots__ = ()

    def read(self, raw: _Raw, op: str) -> Pattern:
        if raw.pattern.parts == ("",):
            raise raw.error("the value is empty: say which text to look for")
        return raw.pattern

    def holds(self, term: Term, event: Event, now: datetime) -> bool:
        held = None if event.last_error is None else event.last_error.translate(_FOLD)
        return held is not None and any(_inside(value).fits(held) for value in term.values)

    def condition(self, term: Term, bind: _Binder, now: datetime) -> str:
        column = 'lower(last_error collate "C")' if bind.postgres else "lower(last_error)"
        find = "strpos" if bind.postgres else "instr"
        parts = []
        for value in term.values:
            inside = _inside(value)
            if len(inside.parts) == 3:  # noqa: PLR2004 - nothing, the text, nothing
                parts.append(f"{find}({column}, {bind(inside.parts[1])}) > 0")
            else:
                parts.append(_like(column, [inside], bind))
        return " or ".join(parts)

    def said(self, term: Term, now: datetime) -> str:
        if all(value.is_anything for value in term.values):
            return "with any error text"
        return f"saying {_listed(_shown(_written(value, quoted=True)) for value in term.values)}"


@dataclass(frozen=True, slots=True)
class _Word(_Kind):
    """One of a few words."""

    column: str = ""
    words: tuple[str, ...] = ()
    noun: str = ""

    def read(self, raw: _Raw, op: str) -> str:
        word = raw.text.lower().replace("-", "_")
        if word not in self.words:
            close = get_close_matches(word[:40], self.words, 1)
            hint = f"did you mean {close[0]}? There are" if close else "there are"
            raise raw.error(f"{_cut(raw.text)} is no {self.noun}: {hint} {', '.join(self.words)}")
        return word

    def write(self, value: str) -> str:
        return value

    def holds(self, term: Term, event: Event, now: datetime) -> bool:
        return getattr(event, self.column) in term.values

    def condition(self, term: Term, bind: _Binder, now: datetime) -> str:
        # Written out, not bound: the planner must see that a partial index serves. They are our own words.
        words = [f"'{self.words[self.words.index(each)]}'" for each in term.values]
        return f"{self.column} {_one_of(words)}"

    def said(self, term: Term, now: datetime) -> str:
        return f"as {_listed(term.values)}"


class _Status(_Word):
    __slots__ = ()

    def said(self, term: Term, now: datetime) -> str:
        return _noun(term.values, "s")


@dataclass(frozen=True, slots=True)
class _Number(_Kind):
    """A column of whole numbers."""

    operators: tuple[str, ...] = (":", *_ORDERED)
    column: str = ""
    form: Callable[[str, Sequence[int]], str] = lambda op, values: ""
    names: Mapping[str, int] = field(default_factory=dict)

    def read(self, raw: _Raw, op: str) -> int:
        text = raw.text
        number = self.names.get(text.lower())
        if number is None and _WHOLE.fullmatch(text):
            number = int(text)
        allowed = self.names.values() if self.names else range(-_LARGEST, _LARGEST + 1)
        if number is None or number not in allowed:
            wanted = ", ".join(f"{value} ({name})" for name, value in self.names.items()) or "a whole number like 3"
            raise raw.error(f"{_cut(text)} is not {'one of ' if self.names else ''}{wanted}")
        return number

    def write(self, value: int) -> str:
        return str(value)

    def holds(self, term: Term, event: Event, now: datetime) -> bool:
        held = getattr(event, self.column)
        return any(_COMPARE[term.op](held, value) for value in term.values)

    def condition(self, term: Term, bind: _Binder, now: datetime) -> str:
        bound = [bind(value, "bigint") for value in term.values]
        return f"{self.column} {_one_of(bound) if term.op == ':' else f'{term.op} {bound[0]}'}"

    def said(self, term: Term, now: datetime) -> str:
        return self.form(term.op, term.values)


@dataclass(frozen=True, slots=True)
class _Time(_Kind):
    """An instant: as a date and time, or as a span before now (``past``) or after it."""

    operators: tuple[str, ...] = _ORDERED
    column: str = ""
    status: Status | None = None  # the only one in which the instant means something
    past: bool | None = None
    verb: str = ""

    def read(self, raw: _Raw, op: str) -> datetime | timedelta:
        return _instant(raw) if self.past is None else _span(raw, signed=not self.past)

    def write(self, value: datetime | timedelta) -> str:
        return _written_span(value) if isinstance(value, timedelta) else _written_instant(value)

    def cut(self, term: Term, now: datetime) -> tuple[str, datetime]:
        """Say on which side of which instant the column must lie."""
        value = term.values[0]
        if self.past is None:
            return term.op, value
        return (_REVERSED[term.op], now - value) if self.past else (term.op, now + value)

    def holds(self, term: Term, event: Event, now: datetime) -> bool:
        if self.status is not None and event.status is not self.status:
            return False
        held = getattr(event, self.column)
        op, at = self.cut(term, now)
        return held is not None and _COMPARE[op](held, at)

    def condition(self, term: Term, bind: _Binder, now: datetime) -> str:
        op, at = self.cut(term, now)
        held = f"{self.column} {op} {bind(at if bind.postgres else to_micros(at), 'timestamptz')}"
        return f"status = '{self.status}' and {held}" if self.status is not None else held

    def said(self, term: Term, now: datetime) -> str:
        op, at = self.cut(term, now)
        when = f"{_SIDE[op]} {_moment(at, now)}"
        if self.past is None:
            return f"{self.verb} {when}".strip()
        return f"{self.relative(term.op, term.values[0])} ({when})"

    def relative(self, op: str, span: timedelta) -> str:
        length = format_duration(abs(span).total_seconds())
        if self.column == "created_at":
            old = {">": "older than {}", ">=": "at least {} old", "<": "younger than {}", "<=": "at most {} old"}
            return old[op].format(length)
        if self.past:
            return f"{_MORE[op]} {length} ago"
        if not span:
            return {"<": "overdue", "<=": "due by now", ">": "not yet due", ">=": "due now or later"}[op]
        if span < timedelta():
            return f"due {_MORE[_REVERSED[op]]} {length} ago{' or later' if op.startswith('>') else ''}"
        return f"due in {_MORE[op]} {length}"


@dataclass(frozen=True, slots=True)
class _Flag(_Kind):
    """Yes or no; when nobody knows, neither."""

    yes: str = ""
    no: str = ""
    held: Callable[[Event], bool | None] = lambda event: None
    sayings: tuple[str, str] = ("", "")

    def read(self, raw: _Raw, op: str) -> bool:
        word = raw.text.lower()
        if word not in _FLAGS:
            raise raw.error(f"{_cut(raw.text)} is neither yes nor no")
        return _FLAGS[word]

    def write(self, value: bool) -> str:  # noqa: FBT001 - the value of a flag is a bool
        return "yes" if value else "no"

    def holds(self, term: Term, event: Event, now: datetime) -> bool:
        held = self.held(event)
        return held is not None and held in term.values

    def condition(self, term: Term, bind: _Binder, now: datetime) -> str:
        return " or ".join(self.yes if value else self.no for value in term.values)

    def said(self, term: Term, now: datetime) -> str:
        return _listed(self.sayings[not value] for value in term.values)


@dataclass(frozen=True, slots=True)
class _Id(_Kind):
    """A UUID or the beginning of one."""

    column: str = ""
    phrase: str = ""

    def read(self, raw: _Raw, op: str) -> str:
        parts = raw.pattern.parts
        digits = parts[0].replace("-", "").lower()
        if parts[1:] not in ((), ("",)) or not _HEX.fullmatch(digits):  # a star at the end changes nothing
            raise raw.error("this is no id: give its hexadecimal digits, or the first few of them")
        return digits

    def write(self, value: str) -> str:
        return str(UUID(value)) if len(value) == _DIGITS else value

    def holds(self, term: Term, event: Event, now: datetime) -> bool:
        held = getattr(event, self.column, None)
        return held is not None and str(held).replace("-", "").startswith(term.values)

    def condition(self, term: Term, bind: _Binder, now: datetime) -> str:
        def bound(digits: str) -> str:
            return bind(UUID(digits) if bind.postgres else str(UUID(digits)))

        whole = [bound(value) for value in term.values if len(value) == _DIGITS]
        parts = [f"{self.column} {_one_of(whole)}"] if whole else []
        for value in term.values:
            if len(value) < _DIGITS:
                first, last = bound(value.ljust(_DIGITS, "0")), bound(value.ljust(_DIGITS, "f"))
                parts.append(f"{self.column} between {first} and {last}")
        return " or ".join(parts)

    def said(self, term: Term, now: datetime) -> str:
        shown = (self.write(value) + ("" if len(value) == _DIGITS else "…") for value in term.values)
        return self.phrase.format(_listed(shown))


@dataclass(frozen=True, slots=True)
class _Json(_Kind):
    """A place in a JSON column. Text is compared with strings; what could be a number, true, false or null with both."""

    operators: tuple[str, ...] = (":", *_ORDERED)
    column: str = ""

    def read(self, raw: _Raw, op: str) -> Pattern | JsonLiteral:
        literal = JsonLiteral(raw.pattern.parts[0])
        if op != ":" and (not raw.plain or literal.number is None):
            raise raw.error(f"{_cut(raw.source[raw.start : raw.end])} is no number: {op} compares numbers only")
        return literal if raw.plain and _JSON_LITERAL.fullmatch(literal.text) else raw.pattern

    def write(self, value: Pattern | JsonLiteral) -> str:
        if isinstance(value, JsonLiteral):
            return value.text
        return _written(value, quoted=bool(value.is_exact and _JSON_LITERAL.fullmatch(value.parts[0])))

    def write_path(self, path: tuple[str | int, ...]) -> str:
        return "".join(
            f"[{step}]" if isinstance(step, int) else f".{step if _BARE_STEP.fullmatch(step) else _quoted(step)}"
            for step in path
        )

    def holds(self, term: Term, event: Event, now: datetime) -> bool:
        held = _at(getattr(event, self.column), term.path)
        return any(_json_fits(held, term.op, value) for value in term.values)

    def condition(self, term: Term, bind: _Binder, now: datetime) -> str:
        place = (_PostgresPlace if bind.postgres else _SqlitePlace)(self.column, term.path, bind)
        return place.guarded(" or ".join(_json_condition(place, term.op, value, bind) for value in term.values))

    def said(self, term: Term, now: datetime) -> str:
        place = f"payload{self.write_path(term.path)}"
        if self.column == "headers":
            place = f"header {_shown(str(term.path[0]))}"
        if all(isinstance(value, Pattern) and value.is_anything for value in term.values):
            return f"with any {place}"
        amount = {":": "", ">": "above ", ">=": "of at least ", "<": "below ", "<=": "of at most "}[term.op]
        return f"with {place} {amount}{_listed(_shown(self.write(value)) for value in term.values)}"


class _Header(_Json):
    """A header: its name is everything behind the first dot, its value is text."""

    __slots__ = ()

    def read(self, raw: _Raw, op: str) -> Pattern:
        return raw.pattern

    def write(self, value: Pattern | JsonLiteral) -> str:
        assert isinstance(value, Pattern)
        return _written(value)

    def write_path(self, path: tuple[str | int, ...]) -> str:
        name = str(path[0])
        return f".{name if _BARE_HEADER.fullmatch(name) else _quoted(name)}"


# --- JSON ---

_MISSING: Final = object()


def _at(held: Any, path: tuple[str | int, ...]) -> Any:
    for step in path:
        if isinstance(held, dict) and isinstance(step, str) and step in held:
            held = held[step]
        elif isinstance(held, list) and isinstance(step, int) and step < len(held):
            held = held[step]
        else:
            return _MISSING
    return held


def _json_fits(held: Any, op: str, value: Pattern | JsonLiteral) -> bool:
    if isinstance(value, Pattern):
        return value.fits(held) if isinstance(held, str) else value.is_anything and held is not _MISSING
    if isinstance(held, str):
        return op == ":" and held == value.text
    if held is None or isinstance(held, bool):
        return op == ":" and json.dumps(held) == value.text
    number = value.number
    if number is None or not isinstance(held, int | float) or not -_LARGEST_JSON <= held <= _LARGEST_JSON:
        return False
    if isinstance(held, int) and isinstance(number, int):
        return _COMPARE[op](held, number)
    return _COMPARE[op](float(held), float(number))


def _json_condition(
    place: "_PostgresPlace | _SqlitePlace", op: str, value: Pattern | JsonLiteral, bind: _Binder
) -> str:
    if isinstance(value, Pattern):
        if value.is_anything:
            return f"{place.kind} is not null"
        return f"case {place.kind} when '{place.string}' then {_like(place.text, [value], bind)} end"
    cases = []
    if op == ":":
        cases.append(f"when '{place.string}' then {place.text} = {bind(value.text, 'text')}")
        if value.text in ("true", "false", "null"):
            cases.append(place.word(value.text))
    if value.number is not None:
        cases.append(place.number("=" if op == ":" else op, value.number, bind))
    return f"case {place.kind} {' '.join(cases)} end"


class _SqlitePlace:
    """``$."name"[0]`` in a column; the path is bound, and its names hold nothing that could end the quotes."""

    string: Final = "text"

    def __init__(self, column: str, path: tuple[str | int, ...], bind: _Binder) -> None:
        steps = "".join(f"[{step}]" if isinstance(step, int) else f'."{step}"' for step in path)
        at = bind(f"${steps}")
        self.column = column
        self.kind = f"json_type({column}, {at})"
        self.text = f"json_extract({column}, {at})"

    def guarded(self, condition: str) -> str:
        # What somebody wrote past us and is no JSON would fail the statement, and with it the whole list.
        return f"case when json_valid({self.column}) then {condition} end"

    def word(self, word: str) -> str:
        return f"when '{word}' then true"

    def number(self, op: str, number: float, bind: _Binder) -> str:
        close = bind(float(number))
        exact = (
            f"{self.text} {op} {bind(number)}" if isinstance(number, int) else f"cast({self.text} as real) {op} {close}"
        )
        bounded = f"{self.text} between -1e200 and 1e200 and"
        return f"when 'integer' then {bounded} {exact} when 'real' then {bounded} {self.text} {op} {close}"


class _PostgresPlace:
    """``column -> 'name' -> 0``, each step bound: a name finds only fields, a number only elements."""

    string: Final = "string"
    # `json` keeps these as written and fails when they are read: NUL, and halves of a surrogate pair.
    unreadable: Final = (
        r"(?<!\\)(\\\\)*\\u(0000|[dD][89abAB]..(?!\\u[dD][c-fC-F])|(?<!\\u[dD][89abAB]..\\u)[dD][c-fC-F])"
    )
    # Numbers that `numeric` and `float8` are sure to take: a single 1e999 must not fail the whole list.
    whole: Final = r"^-?[0-9]{1,19}$"
    decimal: Final = (
        r"^-?([0-9]{1,200}(\.[0-9]{1,60})?|[0-9]{1,60}(\.[0-9]{1,60})?[eE][+-]?[0-9]{1,2}"
        r"|[0-9](\.[0-9]{1,20})?[eE](\+?1?[0-9]{1,2}|-[12]?[0-9]{1,2}))$"
    )

    def __init__(self, column: str, path: tuple[str | int, ...], bind: _Binder) -> None:
        steps = [bind(step, "int" if isinstance(step, int) else "text") for step in path]
        value = " -> ".join((column, *steps))
        self.column, self.bind = column, bind
        self.kind = f"json_typeof({value})"
        self.text = (
            f"({' -> '.join((column, *steps[:-1]))} ->> {steps[-1]})" if steps else f"({column} #>> array[]::text[])"
        )

    def guarded(self, condition: str) -> str:
        text = f"cast({self.column} as text)"
        bad = self.bind(self.unreadable, "text")
        # The first half is nearly free, and our own encoder escapes hardly anything.
        return rf"case when strpos({text}, '\u') = 0 or {text} !~ {bad} then {condition} end"

    def word(self, word: str) -> str:
        return "when 'null' then true" if word == "null" else f"when 'boolean' then {self.text} = '{word}'"

    def number(self, op: str, number: float, bind: _Binder) -> str:
        close = f"cast({self.text} as float8) {op} {bind(float(number), 'float8')}"
        cases = f"when {self.text} ~ {bind(self.decimal, 'text')} then {close}"
        if isinstance(number, int):
            exact = f"cast({self.text} as numeric) {op} {bind(number, 'bigint')}"
            cases = f"when {self.text} ~ {bind(self.whole, 'text')} then {exact} {cases}"
        return f"when 'number' then case {cases} end"


# --- SQL ---


class _Binder:
    """Hands out parameters: letters only, behind a prefix that no statement of ours uses."""

    def __init__(self, dialect: Dialect) -> None:
        self.postgres = dialect == "postgres"
        self.values: dict[str, Any] = {}

    def __call__(self, value: Any, cast: str = "") -> str:
        number, letters = len(self.values), ""
        while number >= 0:
            number, letter = divmod(number, 26)
            letters = chr(97 + letter) + letters
            number -= 1
        name = f"sel_{letters}"
        self.values[name] = value
        return f"cast(:{name} as {cast})" if cast and self.postgres else f":{name}"


def _one_of(bound: Sequence[str]) -> str:
    return f"= {bound[0]}" if len(bound) == 1 else f"in ({', '.join(bound)})"


def _like(column: str, patterns: Sequence[Pattern], bind: _Binder) -> str:
    """Compare a column with any of the patterns. SQLite's LIKE ignores case, so it is GLOB there."""
    exact = [bind(each.parts[0], "text") for each in patterns if each.is_exact]
    parts = [f"{column} {_one_of(exact)}"] if exact else []
    for each in patterns:
        if each.is_anything:
            parts.append(f"{column} is not null")
        elif not each.is_exact and bind.postgres:
            like = "%".join(_LIKE.sub(r"\\\g<0>", part) for part in each.parts)
            parts.append(f"{column} like {bind(like, 'text')}")
        elif not each.is_exact:
            glob = "*".join(_GLOB.sub(r"[\g<0>]", part) for part in each.parts)
            parts.append(f"{column} glob {bind(glob)}")
    return " or ".join(parts)


_LIKE: Final = re.compile(r"[%_\\]")
_GLOB: Final = re.compile(r"[*?\[]")


# --- writing ---


def _written(pattern: Pattern, *, quoted: bool = False) -> str:
    if pattern.parts == ("",):
        return '""'
    return "*".join(
        part if not part or (not quoted and _PLAIN.fullmatch(part) and part.isprintable()) else _quoted(part)
        for part in pattern.parts
    )


def _quoted(text: str) -> str:
    def escaped(found: re.Match[str]) -> str:
        each = found[0]
        if each in _ESCAPED:
            return _ESCAPED[each]
        return each if each.isprintable() or ord(each) > _LARGEST_ESCAPE else f"\\u{ord(each):04x}"

    return f'"{_ODD.sub(escaped, text)}"'


def _written_span(span: timedelta) -> str:
    micros = abs(span) // timedelta(microseconds=1)
    seconds, micros = divmod(micros, 1_000_000)
    minutes, seconds = divmod(seconds, 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    millis = f"{micros // 1000}.{micros % 1000:03d}".rstrip("0").rstrip(".") if micros % 1000 else str(micros // 1000)
    units = ((days, "d"), (hours, "h"), (minutes, "m"), (seconds, "s"), (micros and millis, "ms"))
    return ("-" if span < timedelta() else "") + ("".join(f"{n}{unit}" for n, unit in units if n) or "0s")


def _written_instant(at: datetime) -> str:
    if at.second or at.microsecond:
        return at.replace(tzinfo=None).isoformat() + "Z"
    return f"{at:%Y-%m-%dT%H:%MZ}" if at.hour or at.minute else f"{at:%Y-%m-%d}"


_PLAIN: Final = re.compile(r'[^\s",\\*]+')
_ODD: Final = re.compile(r"[^ !#-\[\]-~]")
_ESCAPED: Final = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t"}
_LARGEST_ESCAPE: Final = 0xFFFF


# --- saying ---


def _sentence(terms: Sequence[Term], now: datetime, count: int | None) -> str:
    left = list(terms)
    noun, left = _counted(left, count)
    positive = [term for term in left if not term.negated]

    def said(names: Iterable[str]) -> list[str]:
        together = ([FIELDS[term.field].said(term, now) for term in positive if term.field == name] for name in names)
        return [" and ".join(phrases) for phrases in together if phrases]

    words = [noun, *said(_NEAR)]
    if failed := said(_FAILED):
        words += ["that failed", *failed]
    sentence = ", ".join((" ".join(words), *said(["status"])))
    if rest := said(name for name in FIELDS if name not in (*_NEAR, *_FAILED, "status")):
        sentence += ", " + " and ".join((", ".join(rest[:-1]), rest[-1]) if rest[1:] else rest)
    denied = [
        f"{'failed ' if term.field.startswith('failed') else ''}{FIELDS[term.field].said(term, now)}"
        for term in left
        if term.negated
    ]
    return sentence + (f", but not {', nor '.join(denied)}" if denied else "")


def _counted(terms: list[Term], count: int | None) -> tuple[str, list[Term]]:
    """Say how many of what, and return the terms that are still to be said."""
    number = {None: "" if terms else "all ", 0: "no "}.get(count, f"{count:,} " if count is not None else "")
    ending = "" if count == 1 else "s"
    status = next((term for term in terms if term.field == "status" and not term.negated), None)
    if status is None:
        return f"{number}event{ending}", terms
    left = [term for term in terms if term is not status]
    if status.values == (Status.FAILED,):
        discarded = next((term for term in left if term.field == "discarded" and len(term.values) == 1), None)
        left = [term for term in left if term is not discarded]
        number += "discarded " if discarded is not None and discarded.values[0] else ""
    return number + _noun(status.values, ending), left


def _noun(statuses: Sequence[str], ending: str) -> str:
    plain = [status.replace("_", "-") for status in statuses if status != Status.FAILED]
    nouns = [f"{_listed(plain)} event{ending}"] if plain else []
    return " or ".join(nouns + [f"dead letter{ending}"] * (Status.FAILED in statuses))


def _listed(shown: Iterable[str]) -> str:
    each = list(shown)
    if len(each) > _MOST_LISTED + 1:
        each = [*each[:_MOST_LISTED], f"one of {len(each) - _MOST_LISTED} others"]
    return " or ".join((", ".join(each[:-1]), each[-1]) if each[1:] else each)


def _shown(written: str) -> str:
    return written if len(written) <= _LONGEST_SHOWN else written[:_LONGEST_SHOWN] + "…"


def _cut(text: str) -> str:
    return _shown(_quoted(text))


def _moment(at: datetime, now: datetime) -> str:
    clock = f"{at:%H:%M:%S}" if at.second or at.microsecond else f"{at:%H:%M}"
    return clock if at.date() == now.date() else f"{at:%Y-%m-%d} {clock}"


def _amount(noun: str) -> Callable[[str, Sequence[int]], str]:
    def said(op: str, values: Sequence[int]) -> str:
        more = {":": "", ">": "more than ", ">=": "at least ", "<": "fewer than ", "<=": "at most "}[op]
        return f"with {more}{_listed(map(str, values))} {noun}{'' if values[-1] == 1 else 's'}"

    return said


def _ordinal(preposition: str, noun: str) -> Callable[[str, Sequence[int]], str]:
    def said(op: str, values: Sequence[int]) -> str:
        number = _listed(map(str, values))
        forms = {":": "{}", ">": "{} plus one or later", ">=": "{} or later", "<": "below {}", "<=": "{} or earlier"}
        return f"{preposition} {noun} {forms[op].format(number)}"

    return said


def _said_priority(op: str, values: Sequence[int]) -> str:
    if op == ":":
        return f"with {_listed(Priority(value).name.lower() for value in values)} priority"
    side = {">": "below", ">=": "of at most", "<": "above", "<=": "of at least"}[op]
    return f"with a priority {side} {Priority(values[0]).name.lower()}"


_SIDE: Final = {"<": "before", "<=": "at or before", ">": "after", ">=": "at or after"}
_MORE: Final = {">": "more than", ">=": "at least", "<": "less than", "<=": "at most"}
_NEAR: Final = ("type", "target", "source", "queue", "group")
_FAILED: Final = ("error-type", "class", "text", "failed", "failed-at")
_MOST_LISTED: Final = 5
_LONGEST_SHOWN: Final = 80


# --- the fields ---

FIELDS: Final[Mapping[str, _Kind]] = {
    "type": _Text(column="type", phrase="of {}", noun="type"),
    "status": _Status(column="status", words=tuple(each.value for each in Status), noun="status"),
    "class": _Word(column="error_class", words=tuple(each.value for each in ErrorClass), noun="error class"),
    "error-type": _ErrorType(column="error_type", phrase="with {}", noun="error type"),
    "text": _Error(column="last_error", noun="error text"),
    "group": _Group(column="fingerprint", phrase="in group {}", noun="group"),
    "target": _Text(column="target", phrase="for target {}", noun="target"),
    "queue": _Text(column="queue", phrase="in queue {}", noun="queue"),
    "source": _Text(column="source", phrase="from {}", noun="source"),
    "subject": _Text(column="subject", phrase="about {}", noun="subject"),
    "key": _Text(column="ordering_key", phrase="with ordering key {}", noun="ordering key"),
    "retry-key": _Text(column="retry_key", phrase="with retry key {}", noun="retry key"),
    "idem": _Text(column="idempotency_key", phrase="with idempotency key {}", noun="idempotency key"),
    "corr": _Correlation(column="correlation_id", phrase="correlated to {}", noun="correlation"),
    "cause": _Text(column="causation_id", phrase="caused by {}", noun="cause"),
    "id": _Id(column="id", phrase="with id {}"),
    "batch": _Id(column="batch_id", phrase="in batch {}"),
    "payload": _Json(column="payload"),
    "header": _Header(operators=(":",), column="headers"),
    "age": _Time(column="created_at", past=True),
    "created": _Time(column="created_at", verb="created"),
    "failed": _Time(column="ended_at", status=Status.FAILED, past=True),
    "failed-at": _Time(column="ended_at", status=Status.FAILED),
    "due": _Time(column="due_at", status=Status.PENDING, past=False),
    "due-at": _Time(column="due_at", status=Status.PENDING, verb="due"),
    "attempts": _Number(column="attempts", form=_amount("attempt")),
    "lost": _Number(column="lost_count", form=_amount("lost attempt")),
    "cycle": _Number(column="cycle", form=_ordinal("in", "cycle")),
    "generation": _Number(column="generation", form=_ordinal("of", "generation")),
    "priority": _Number(
        column="priority", form=_said_priority, names={each.name.lower(): each.value for each in Priority}
    ),
    "safe": _Flag(
        yes="safe_to_retry is true",
        no="safe_to_retry is false",
        held=lambda event: event.safe_to_retry,
        sayings=("safe to retry", "unsafe to retry"),
    ),
    "discarded": _Flag(
        yes="deleted_at is not null",
        no="deleted_at is null",
        held=lambda event: event.deleted_at is not None,
        sayings=("discarded", "not discarded"),
    ),
}
"""Every field by the name it is written with; nothing else can be asked for."""

# The columns' own names, for those who have met them in a table or in JSON.
_ALIASES: Final = {
    "gen": "generation", "error-class": "class", "last-error": "text", "fingerprint": "group", "ordering-key": "key",
    "idempotency-key": "idem", "correlation": "corr", "correlation-id": "corr", "causation": "cause",
    "causation-id": "cause", "batch-id": "batch", "headers": "header", "created-at": "created", "lost-count": "lost",
    "safe-to-retry": "safe",
}  # fmt: skip
