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
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from difflib import get_close_matches
from typing import Any, Final, Literal, cast
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
_MAX_DEPTH: Final = 64  # of a path; no payload is deeper by default

Dialect = Literal["sqlite", "postgres"]
Path = tuple[str | int, ...]
_ORDERED: Final = (">", ">=", "<", "<=")
_COMPARE: Final[Mapping[str, Callable[[Any, Any], bool]]] = {
    ":": operator.eq, ">": operator.gt, ">=": operator.ge, "<": operator.lt, "<=": operator.le,
}  # fmt: skip
_REVERSED: Final = {">": "<", ">=": "<=", "<": ">", "<=": ">="}


# --- what a selection is made of ---


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
        if self.text.lstrip("-").isdigit():
            return int(self.text) if _is_whole(self.text) else None
        value = float(self.text)
        return value if -_LARGEST_JSON <= value <= _LARGEST_JSON else None


@dataclass(frozen=True, slots=True)
class Term:
    """One condition: a field (and a path inside it), an operator of ``: > >= < <=``, and its alternatives."""

    field: str
    op: str
    values: tuple[Any, ...]
    negated: bool = False
    path: Path = ()

    @property
    def text(self) -> str:
        written = ",".join(FIELDS[self.field].write(value) for value in self.values)
        return f"{'-' if self.negated else ''}{self.field}{_written_path(self)}{self.op}{written}"

    def at(self, now: datetime) -> "Term":
        """Make a span of time an instant: what is true of an event is then true by its columns alone."""
        kind = FIELDS[self.field]
        return kind.absolute(self, now) if isinstance(kind, _Span) else self


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
        terms = (term.at(now) for term in self.terms)
        return all(FIELDS[term.field].holds(term, event) is not term.negated for term in terms)

    def where(self, dialect: Dialect, now: datetime) -> tuple[list[str], dict[str, Any]]:
        """Turn the terms into conditions and their values, for the end of a statement on the outbox."""
        bind = _Binder(dialect)
        clauses = []
        for each in self.terms:
            term = each.at(now)
            condition = FIELDS[term.field].condition(term, bind)
            if term.negated:
                clauses.append(f"and ({condition}) is not true")
            else:
                clauses.append(f"and ({condition})" if " or " in condition else f"and {condition}")
        return clauses, bind.values

    def sentence(self, now: datetime, count: int | None = None) -> str:
        """Say in English what is meant; times are UTC, and without a date when they are of today."""
        return _sentence(self.terms, now.astimezone(UTC), count)


def dead_letters(selection: Selection) -> Selection:
    """Narrow a selection to the quarantine, unless it says itself which status it wants, or the discarded ones."""
    said = {term.field for term in selection.terms if not term.negated}
    added = [Term(name, ":", (value,)) for name, value in _QUARANTINE if name not in said]
    narrowed = Selection((*added, *selection.terms))
    if len(narrowed.terms) > MAX_TERMS or len(narrowed.text) > MAX_LENGTH:
        names = " and ".join(term.text for term in added)
        raise SelectionError(f"there is no room left for {names}: say less, or say that too", selection.text)
    return narrowed


_QUARANTINE: Final = (("status", Status.FAILED.value), ("discarded", False))


# --- reading ---


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
            raise self.error("there are no wildcards here: write it in full")
        return self.pattern.parts[0]

    def error(self, reason: str) -> SelectionError:
        return SelectionError(reason, self.source, self.start, self.end - self.start)


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
            raise SelectionError(f"a selection has at most {MAX_TERMS} terms, this is one more", text, start)
        if alternatives > MAX_ALTERNATIVES:
            reason = f"a selection has at most {MAX_ALTERNATIVES} values in all, here it has {alternatives}"
            raise SelectionError(reason, text, start)
        at = _after_space(text, at)
    selection = Selection(tuple(terms))
    if len(text) > _ALWAYS_SHORT and len(selection.text) > MAX_LENGTH:
        reason = f"written out in full, this selection has more than {MAX_LENGTH:,} characters: shorten it"
        raise SelectionError(reason, text, len(text))
    return selection


def _read_term(text: str, at: int) -> tuple[Term, int]:
    at, negated = _read_negation(text, at)
    end = _end(_HEAD, text, at)
    found = _OPERATOR.match(text, end)
    name, path, op = "text", cast("Path", ()), ":"
    if found is None:
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
        allowed = (":", "=", "!=", *kind.operators[1:]) if ":" in kind.operators else kind.operators
        raise SelectionError(f"{name} takes {' '.join(allowed)} here", text, end, len(op))
    raws, at = _read_values(text, at)
    if op != ":" and len(raws) > 1:
        raise raws[1].error(f"{op} takes one value")
    values = tuple(kind.read(raw) for raw in raws)
    if op != ":" and name == "payload" and not (isinstance(values[0], JsonLiteral) and values[0].number is not None):
        raise raws[0].error(f"{op} compares numbers, and this is none that every store could compare")
    if name == "discarded" and negated and len(values) == 1:
        values, negated = (not values[0],), False  # one way to say it, and one that an index can serve
    return Term(name, op, values, negated, path), at


def _read_negation(text: str, start: int) -> tuple[int, bool]:
    negation = _NEGATION.match(text, start)
    if negation is None:
        return start, False
    at = negation.end()
    if at == len(text) or text[at].isspace():
        raise SelectionError("say what shall not hold: -class:missing, or: not class:missing", text, start)
    if _NEGATION.match(text, at):
        raise SelectionError("this is turned round twice: leave both out", text, start, at + 1 - start)
    return at, True


def _check_bare(text: str, at: int, end: int) -> None:
    word = text[at:end].lower()
    if word == "and":
        raise SelectionError("all terms must hold anyway: leave this out, or quote it to search for it", text, at, 3)
    if word == "or":
        raise SelectionError("alternatives are written type:a,b; quote this to search for it", text, at, 2)
    if word.startswith("("):
        raise SelectionError("there are no brackets: all terms must hold; quote this to search for it", text, at)


def _read_field(text: str, at: int, end: int) -> tuple[str, Path]:
    if at == end:
        raise SelectionError("a field must stand right before this, without a space: age>1h", text, end)
    rest = _end(_NAME, text, at)
    name = text[at:rest].lower().replace("_", "-")
    name = _ALIASES.get(name, name)
    if name == "payload" and text[rest] in ".[:=<>!":
        return name, _read_path(text, rest, end)
    if name == "header":
        if not text[rest:end].startswith("."):
            raise SelectionError("say which header: header.tenant:acme", text, at, end - at)
        return name, (_read_name(text, rest + 1, end),)
    if name in FIELDS and rest == end:
        return name, ()
    written = text[at:end]
    close = get_close_matches(written[:40].lower().replace("_", "-"), [*FIELDS, *_ALIASES])
    names = list(dict.fromkeys(_ALIASES.get(each, each) for each in close))
    hint = f"did you mean {_listed(names)}?" if names else f"there are {', '.join(FIELDS)}."
    reason = f"there is no field {_cut(written)}: {hint} To search for text, quote it"
    raise SelectionError(reason, text, at, end - at)


def _read_path(text: str, at: int, end: int) -> Path:
    path: list[str | int] = []
    while at < end:
        step = _STEP.match(text, at, end)
        if step is None:
            raise SelectionError('a path goes on like .name, ."any name" or [0]', text, at, end - at)
        if len(path) == _MAX_DEPTH:
            raise SelectionError(f"a path has at most {_MAX_DEPTH} steps", text, at, end - at)
        path.append(int(step[1]) if step[1] else _read_name(text, at + 1, step.end()))
        at = step.end()
    return tuple(path)


def _read_name(text: str, at: int, end: int) -> str:
    """Read a name in a path. One with quotes or backslashes could not be found on every version of SQLite."""
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
        if text[at : at + 1] != "," or len(raws) > MAX_ALTERNATIVES:  # that many are refused, not read to the end
            return raws, at
        at += 1


def _read_value(text: str, start: int) -> tuple[_Raw, int]:
    at, parts, plain = start, [""], True
    while (token := _TOKEN.match(text, at)) is not None:
        first = text[at]
        if first == "*":
            if parts[-1] or len(parts) == 1:  # two in a row are one
                parts.append("")
        elif first == '"':
            parts[-1] += _unescaped(text, at + 1, token.end() - 1)
        else:
            parts[-1] += _unescaped(text, at, token.end())
        plain = plain and first not in '*"\\'
        at = token.end()
    unfinished = text[at : at + 1]
    if unfinished == '"':
        raise SelectionError(r"this quote has no end: close it, or write \" for the character", text, at)
    if unfinished == "\\":
        raise SelectionError(r"nothing follows this backslash: write \\ for the character", text, at)
    if at == start:
        raise SelectionError('a value is missing here: no space before it, and "" for an empty text', text, at)
    raw = _Raw(text, start, at, Pattern(tuple(parts)), plain)
    if len(parts) > _MAX_STARS + 1:
        raise raw.error(f"a value has at most {_MAX_STARS} wildcards")
    return raw, at


def _unescaped(text: str, start: int, end: int) -> str:
    def meaning(found: re.Match[str]) -> str:
        code = found[1]
        char = chr(int(code[1:], 16)) if len(code) > 1 else _ESCAPES.get(code, code)
        if (len(code) == 1 and char.isalnum()) or _UNSTORABLE.match(char):
            reason = r'a backslash stands before " \ * or a comma, n, r, t, or a code like u00e9; \\ is a backslash'
            raise SelectionError(reason, text, start + found.start(), len(found[0]))
        return char

    inner = text[start:end]
    return _ESCAPE.sub(meaning, inner) if "\\" in inner else inner


def _end(pattern: re.Pattern[str], text: str, at: int) -> int:
    """Say where this ends that may also be nothing."""
    found = pattern.match(text, at)
    return at if found is None else found.end()


def _after_space(text: str, at: int) -> int:
    return _end(_SPACE, text, at)


def _is_whole(text: str) -> bool:
    return _WHOLE.fullmatch(text) is not None and -_LARGEST <= int(text) <= _LARGEST


_SPACE: Final = re.compile(r"\s*")
_NEGATION: Final = re.compile(r"-|not(?:\s+|$)", re.IGNORECASE)
_HEAD: Final = re.compile(r'(?:[^\s":=<>!\\]|!(?!=)|\\.|"(?:[^"\\]|\\.)*+")*+', re.DOTALL)
_OPERATOR: Final = re.compile(r">=|<=|!=|[:=<>]")
_TOKEN: Final = re.compile(r'[^\s",\\*]++|\*|\\(?:u[0-9a-fA-F]{4}|.)|"(?:[^"\\]|\\.)*+"', re.DOTALL)
_ESCAPE: Final = re.compile(r"\\(u[0-9a-fA-F]{4}|.)", re.DOTALL)
_ESCAPES: Final = {"n": "\n", "r": "\r", "t": "\t"}
_NAME: Final = re.compile(r"[a-z_-]+", re.IGNORECASE | re.ASCII)
_STEP: Final = re.compile(r'\[([0-9]{1,6})\]|\.(?:[^\s":=<>!,\\*.\[\]]+|"[^"]*")')
_NO_NAME: Final = re.compile(r'["\\\x00-\x1f\x7f]')
_UNSTORABLE: Final = re.compile("[\x00\ud800-\udfff]")
_ALWAYS_SHORT: Final = 512  # even with six characters for each, and fifty long names of fields
_WHOLE: Final = re.compile(r"-?[0-9]{1,19}")
_LARGEST: Final = 2**63 - 1
_LARGEST_JSON: Final = 1e100
_JSON_LITERAL: Final = re.compile(r"true|false|null|-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")


# --- kinds of fields: how a value is read and written, what it means, how it is asked for and said ---


@dataclass(frozen=True, slots=True)
class _Kind:
    column: str
    operators: tuple[str, ...] = (":",)

    def read(self, raw: _Raw) -> Any:
        raise NotImplementedError

    def write(self, value: Any) -> str:
        raise NotImplementedError

    def holds(self, term: Term, event: Event) -> bool:
        """Judge a term without its negation."""
        raise NotImplementedError

    def condition(self, term: Term, bind: "_Binder") -> str:
        """Write a term without its negation. A condition may come out as null, which is as good as false."""
        raise NotImplementedError

    def said(self, term: Term) -> str:
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class _Text(_Kind):
    """Text, compared letter by letter, upper and lower case apart."""

    phrase: str = ""
    noun: str = ""

    def read(self, raw: _Raw) -> Pattern:
        return raw.pattern

    def write(self, value: Pattern) -> str:
        return _written(value)

    def expanded(self, pattern: Pattern) -> Sequence[Pattern]:
        return (pattern,)

    def holds(self, term: Term, event: Event) -> bool:
        held = getattr(event, self.column)
        return held is not None and any(each.fits(held) for value in term.values for each in self.expanded(value))

    def condition(self, term: Term, bind: "_Binder") -> str:
        return _like(self.column, [each for value in term.values for each in self.expanded(value)], bind)

    def said(self, term: Term) -> str:
        if all(value.is_anything for value in term.values):
            return f"with any {self.noun}"
        return self.phrase.format(_listed(_shown(self.write(value)) for value in term.values))


class _ErrorType(_Text):
    """``ConnectTimeout`` is also ``httpx.ConnectTimeout``."""

    __slots__ = ()

    def expanded(self, pattern: Pattern) -> Sequence[Pattern]:
        first, *others = pattern.parts
        return (pattern, Pattern(("", f".{first}", *others))) if first else (pattern,)


class _Group(_Text):
    """A fingerprint or its beginning, with or without the version in front of the colon."""

    __slots__ = ()

    def read(self, raw: _Raw) -> Pattern:
        if raw.pattern.parts == ("",):
            raise raw.error("a group cannot be empty: give its name, or the beginning of it")
        return raw.pattern

    def expanded(self, pattern: Pattern) -> Sequence[Pattern]:
        start = pattern.parts[0]
        if not pattern.is_exact or _FINGERPRINT.fullmatch(start):
            return (pattern,)
        return (Pattern((start, "")), *(() if ":" in start else (Pattern(("", f":{start}", "")),)))


class _Correlation(_Text):
    """The first event of a correlation is known by its own id."""

    __slots__ = ()

    def holds(self, term: Term, event: Event) -> bool:
        return Pattern((str(event.id),)) in term.values or super().holds(term, event)

    def condition(self, term: Term, bind: "_Binder") -> str:
        exact = (value.parts[0] for value in term.values if value.is_exact)
        own = [f"id = {bind.uuid(each)}" for each in exact if _UUID.fullmatch(each)]
        return " or ".join([super().condition(term, bind), *own])


class _Error(_Text):
    """The text of the last error: anywhere in it, A to Z like a to z.

    Other letters must have the right case: SQLite folds no others, and PostgreSQL would do so by its locale.
    """

    __slots__ = ()

    def read(self, raw: _Raw) -> Pattern:
        if raw.pattern.parts == ("",):
            raise raw.error("this text is empty: say what to look for")
        return raw.pattern

    def expanded(self, pattern: Pattern) -> Sequence[Pattern]:
        parts = [part.translate(_FOLD) for part in pattern.parts]
        return (Pattern((*[""][: len(parts[0])], *parts, *[""][: len(parts[-1])])),)

    def holds(self, term: Term, event: Event) -> bool:
        held = None if event.last_error is None else event.last_error.translate(_FOLD)
        return held is not None and any(self.expanded(value)[0].fits(held) for value in term.values)

    def condition(self, term: Term, bind: "_Binder") -> str:
        column = 'lower(last_error collate "C")' if bind.postgres else "lower(last_error)"
        return _like(column, [self.expanded(value)[0] for value in term.values], bind)

    def said(self, term: Term) -> str:
        if all(value.is_anything for value in term.values):
            return "with any error text"
        return f"saying {_listed(_shown(_written(value, quoted=True)) for value in term.values)}"


@dataclass(frozen=True, slots=True)
class _Word(_Kind):
    """One of a few words."""

    words: tuple[str, ...] = ()
    noun: str = ""

    def read(self, raw: _Raw) -> str:
        word = raw.text.lower().replace("-", "_")
        if word not in self.words:
            close = get_close_matches(word[:40], self.words, 1)
            hint = f"did you mean {close[0]}? There are" if close else "there are"
            raise raw.error(f"{_cut(raw.text)} is no {self.noun}: {hint} {', '.join(self.words)}")
        return word

    def write(self, value: str) -> str:
        return value

    def holds(self, term: Term, event: Event) -> bool:
        return getattr(event, self.column) in term.values

    def condition(self, term: Term, _: "_Binder") -> str:
        # Written out, for a planner that must see that a partial index serves; hence from our own list.
        return f"{self.column} {_one_of([repr(word) for word in self.words if word in term.values])}"

    def said(self, term: Term) -> str:
        return f"as {_listed(term.values)}" if self.column == "error_class" else _noun(term.values, "s")


@dataclass(frozen=True, slots=True)
class _Number(_Kind):
    """A whole number; some have names."""

    operators: tuple[str, ...] = (":", *_ORDERED)
    form: Callable[[str, Sequence[int]], str] = field(kw_only=True)
    names: Mapping[str, int] = field(default_factory=dict)

    def read(self, raw: _Raw) -> int:
        text = raw.text
        number = int(text) if _is_whole(text) else self.names.get(text.lower())
        if number is None:
            raise raw.error(f"{_cut(text)} is no whole number")
        if self.names and number not in self.names.values():
            allowed = _listed(f"{value} ({name})" for name, value in self.names.items())
            raise raw.error(f"{number} cannot be: it is {allowed}")
        return number

    def write(self, value: int) -> str:
        return str(value)

    def holds(self, term: Term, event: Event) -> bool:
        return any(_COMPARE[term.op](getattr(event, self.column), value) for value in term.values)

    def condition(self, term: Term, bind: "_Binder") -> str:
        bound = [bind(value, "bigint") for value in term.values]
        return f"{self.column} {_one_of(bound) if term.op == ':' else f'{term.op} {bound[0]}'}"

    def said(self, term: Term) -> str:
        return self.form(term.op, term.values)


@dataclass(frozen=True, slots=True)
class _Instant(_Kind):
    """A date and time; for some only in the status in which it means something."""

    operators: tuple[str, ...] = _ORDERED
    status: Status | None = None
    verb: str = ""

    def read(self, raw: _Raw) -> datetime:
        text = raw.text
        at = None
        if _INSTANT.fullmatch(text):
            try:
                at = datetime.fromisoformat(text)
                at = at.replace(tzinfo=UTC) if at.tzinfo is None else at.astimezone(UTC)
            except (ValueError, OverflowError):
                at = None
        if at is None or not _FIRST <= at < _LAST:
            reason = f"{_cut(text)} is no date: write 2026-11-01 or 2026-11-01T14:05 (UTC), or 2026-11-01T14:05+01:00"
            raise raw.error(reason)
        return at

    def write(self, value: datetime) -> str:
        if value.second or value.microsecond:
            return value.replace(tzinfo=None).isoformat() + "Z"
        return f"{value:%Y-%m-%dT%H:%MZ}" if value.hour or value.minute else f"{value:%Y-%m-%d}"

    def holds(self, term: Term, event: Event) -> bool:
        held = getattr(event, self.column)
        return (
            held is not None
            and event.status is (self.status or event.status)
            and _COMPARE[term.op](held, term.values[0])
        )

    def condition(self, term: Term, bind: "_Binder") -> str:
        at = term.values[0] if bind.postgres else to_micros(term.values[0])
        held = f"{self.column} {term.op} {bind(at, 'timestamptz')}"
        return held if self.status is None else f"status = '{self.status.value}' and {held}"


@dataclass(frozen=True, slots=True)
class _Span(_Kind):
    """A span of time before now, or from now on: another way to say an instant."""

    operators: tuple[str, ...] = _ORDERED
    instant: str = ""
    past: bool = True

    def read(self, raw: _Raw) -> timedelta:
        text = raw.text
        sign = -1 if text.startswith("-") and not self.past else 1
        try:
            return sign * timedelta(seconds=parse_duration(text if sign > 0 else text[1:]))
        except BadDuration:
            raise raw.error(f"{_cut(text)} is no duration: write {ACCEPTED}") from None

    def write(self, value: timedelta) -> str:
        seconds, micros = divmod(abs(value) // timedelta(microseconds=1), 1_000_000)
        days, hours, minutes = seconds // 86_400, seconds // 3_600 % 24, seconds // 60 % 60
        millis = f"{micros / 1000:.3f}".rstrip("0").rstrip(".") if micros else 0
        units = ((days, "d"), (hours, "h"), (minutes, "m"), (seconds % 60, "s"), (millis, "ms"))
        return ("-" if value < timedelta() else "") + ("".join(f"{n}{unit}" for n, unit in units if n) or "0s")

    def absolute(self, term: Term, now: datetime) -> Term:
        span = term.values[0]
        op, at = (_REVERSED[term.op], now - span) if self.past else (term.op, now + span)
        return Term(self.instant, op, (at,), term.negated)

    def said(self, term: Term) -> str:
        op, span = term.op, term.values[0]
        length = format_duration(abs(span).total_seconds())
        if self.instant == "created":
            forms = {">": "older than {}", ">=": "at least {} old", "<": "younger than {}", "<=": "at most {} old"}
            return forms[op].format(length)
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

    conditions: tuple[str, str] = ("", "")
    sayings: tuple[str, str] = ("", "")

    def read(self, raw: _Raw) -> bool:
        if raw.text.lower() not in _FLAGS:
            raise raw.error(f"{_cut(raw.text)} is neither yes nor no")
        return _FLAGS[raw.text.lower()]

    def write(self, value: bool) -> str:  # noqa: FBT001 - that is what a flag is
        return "yes" if value else "no"

    def holds(self, term: Term, event: Event) -> bool:
        held = event.deleted_at is not None if self.column == "deleted_at" else event.safe_to_retry
        return held in term.values

    def condition(self, term: Term, _: "_Binder") -> str:
        return " or ".join(self.conditions[value] for value in term.values)

    def said(self, term: Term) -> str:
        return _listed(self.sayings[value] for value in term.values)


@dataclass(frozen=True, slots=True)
class _Id(_Kind):
    """A UUID or the beginning of one."""

    phrase: str = ""

    def read(self, raw: _Raw) -> str:
        digits = raw.pattern.parts[0].replace("-", "").lower()
        if raw.pattern.parts[1:] not in ((), ("",)) or not _HEX.fullmatch(digits):  # a star at the end is implied
            raise raw.error("this is no id: give its hexadecimal digits, or the first few of them")
        return digits

    def write(self, value: str) -> str:
        return str(UUID(value)) if len(value) == _DIGITS else value

    def holds(self, term: Term, event: Event) -> bool:
        return str(getattr(event, self.column, None) or "").replace("-", "").startswith(term.values)

    def condition(self, term: Term, bind: "_Binder") -> str:
        whole = [bind.uuid(value) for value in term.values if len(value) == _DIGITS]
        parts = [f"{self.column} {_one_of(whole)}"] if whole else []
        for value in term.values:
            if len(value) < _DIGITS:
                first, last = bind.uuid(value.ljust(_DIGITS, "0")), bind.uuid(value.ljust(_DIGITS, "f"))
                parts.append(f"{self.column} between {first} and {last}")
        return " or ".join(parts)

    def said(self, term: Term) -> str:
        return self.phrase.format(
            _listed(self.write(value) + ("" if len(value) == _DIGITS else "…") for value in term.values)
        )


_FINGERPRINT: Final = re.compile(r"[0-9]+:[0-9a-f]{16}")
_UUID: Final = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_HEX: Final = re.compile(r"[0-9a-f]{1,32}")
_DIGITS: Final = 32
_FOLD: Final = {upper: upper + 32 for upper in range(ord("A"), ord("Z") + 1)}
_FLAGS: Final = {"yes": True, "true": True, "no": False, "false": False}
_INSTANT: Final = re.compile(r"\d{4}-\d\d-\d\d(?:[T ]\d\d:\d\d(?::\d\d(?:\.\d{1,6})?)?(?:Z|[+-]\d\d:\d\d)?)?", re.ASCII)
_FIRST, _LAST = datetime(1970, 1, 1, tzinfo=UTC), datetime(9999, 1, 1, tzinfo=UTC)


# --- JSON ---


@dataclass(frozen=True, slots=True)
class _Json(_Kind):
    """A place in the payload. Text means a string; a number, true, false or null means that or a string like it."""

    operators: tuple[str, ...] = (":", *_ORDERED)

    def read(self, raw: _Raw) -> Pattern | JsonLiteral:
        text = raw.pattern.parts[0]
        return JsonLiteral(text) if raw.plain and _JSON_LITERAL.fullmatch(text) else raw.pattern

    def write(self, value: Pattern | JsonLiteral) -> str:
        if isinstance(value, JsonLiteral):
            return value.text
        return _written(value, quoted=bool(value.is_exact and _JSON_LITERAL.fullmatch(value.parts[0])))

    def holds(self, term: Term, event: Event) -> bool:
        held = getattr(event, self.column)
        for step in term.path:
            inside = isinstance(held, dict) and step in held
            if not inside and not (isinstance(held, list) and isinstance(step, int) and step < len(held)):
                return False
            held = held[step]
        return any(_json_fits(held, term.op, value) for value in term.values)

    def condition(self, term: Term, bind: "_Binder") -> str:
        place = (_PostgresPlace if bind.postgres else _SqlitePlace)(self.column, term.path, bind)
        return place.guarded(" or ".join(place.condition(term.op, value) for value in term.values))

    def said(self, term: Term) -> str:
        place = "header " + str(term.path[0]) if self.column == "headers" else "payload" + _written_path(term)
        if all(isinstance(value, Pattern) and value.is_anything for value in term.values):
            return f"with any {_shown(place)}"
        amount = {":": "", ">": "above ", ">=": "of at least ", "<": "below ", "<=": "of at most "}[term.op]
        return f"with {_shown(place)} {amount}{_listed(_shown(self.write(value)) for value in term.values)}"


class _Header(_Json):
    """A header: everything behind the first dot is its name, and its value is text."""

    __slots__ = ()

    def read(self, raw: _Raw) -> Pattern:
        return raw.pattern

    def write(self, value: Pattern | JsonLiteral) -> str:
        return _written(cast("Pattern", value))


def _json_fits(held: Any, op: str, value: Pattern | JsonLiteral) -> bool:
    if isinstance(value, Pattern):
        return value.fits(held) if isinstance(held, str) else value.is_anything
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


class _Place:
    """A place in a JSON column: its type, and what stands there."""

    column: str
    kind: str
    text: str
    string: str
    bind: "_Binder"

    def condition(self, op: str, value: Pattern | JsonLiteral) -> str:
        if isinstance(value, Pattern):
            fits = f"case {self.kind} when '{self.string}' then {_like(self.text, [value], self.bind)} end"
            return f"{self.kind} is not null" if value.is_anything else fits
        cases = []
        if op == ":":
            cases.append(f"when '{self.string}' then {self.text} = {self.bind(value.text, 'text')}")
            if value.text in ("true", "false", "null"):
                cases.append(self.word(value.text))
        if value.number is not None:
            cases.append(self.number("=" if op == ":" else op, value.number))
        return f"case {self.kind} {' '.join(cases)} end"

    def word(self, word: str) -> str:
        raise NotImplementedError

    def number(self, op: str, number: float) -> str:
        raise NotImplementedError


class _SqlitePlace(_Place):
    """``$."name"[0]``, bound as one; a name holds nothing that could end its quotes."""

    string = "text"

    def __init__(self, column: str, path: Path, bind: "_Binder") -> None:
        steps = "".join(f"[{step}]" if isinstance(step, int) else f'."{step}"' for step in path)
        at = bind(f"${steps}")
        self.column, self.bind = column, bind
        self.kind, self.text = f"json_type({column}, {at})", f"json_extract({column}, {at})"

    def guarded(self, condition: str) -> str:
        # What somebody wrote past us and is no JSON would fail the statement, and with it the whole list.
        return f"case when json_valid({self.column}) then {condition} end"

    def word(self, word: str) -> str:
        return f"when '{word}' then true"

    def number(self, op: str, number: float) -> str:
        close = self.bind(float(number))
        whole = isinstance(number, int)
        exact = f"{self.text} {op} {self.bind(number)}" if whole else f"cast({self.text} as real) {op} {close}"
        bounds = f"{self.text} between -1e100 and 1e100"
        return f"when 'integer' then {bounds} and {exact} when 'real' then {bounds} and {self.text} {op} {close}"


class _PostgresPlace(_Place):
    """``column -> 'name' -> 0``, each step bound: a name finds only fields, a number only elements."""

    string = "string"

    def __init__(self, column: str, path: Path, bind: "_Binder") -> None:
        steps = [bind(step, "int" if isinstance(step, int) else "text") for step in path]
        self.column, self.bind = column, bind
        self.held = " -> ".join((column, *steps))
        self.kind, self.text = "json_typeof(held)", "(held #>> array[]::text[])"

    def guarded(self, condition: str) -> str:
        text = f"cast({self.column} as text)"
        # The first half is nearly free, and our own encoder escapes hardly anything.
        readable = rf"strpos({text}, '\u') = 0 or {text} !~ {self.bind(_UNREADABLE, 'text')}"
        # `offset 0`: without it the planner reads the document anew for each mention (13 µs a row instead of 5).
        place = f"(select {self.held} as held offset 0) as place"
        return f"case when {readable} then (select {condition} from {place}) end"  # noqa: S608 - its values are bound

    def word(self, word: str) -> str:
        return "when 'null' then true" if word == "null" else f"when 'boolean' then {self.text} = '{word}'"

    def number(self, op: str, number: float) -> str:
        close = f"cast({self.text} as float8) {op} {self.bind(float(number), 'float8')}"
        cases = f"when length({self.text}) <= 60 and {self.text} ~ {self.bind(_DECIMAL, 'text')} then {close}"
        if isinstance(number, int):
            exact = f"cast({self.text} as numeric) {op} {self.bind(number, 'bigint')}"
            cases = f"when {self.text} ~ {self.bind(_SHORT, 'text')} then {exact} {cases}"
        return f"when 'number' then case {cases} end"


# PostgreSQL's `json` keeps these escapes and fails when it must read them: NUL, and halves of a surrogate pair.
_UNREADABLE: Final = r"(?<!\\)(\\\\)*\\u(0000|[dD][89abAB]..(?!\\u[dD][c-fC-F])|(?<!\\u[dD][89abAB]..\\u)[dD][c-fC-F])"
# Numbers that `numeric` and `float8` are sure to take, of at most 60 characters: a single 1e999 must not fail the list.
_SHORT: Final = r"^-?[0-9]{1,19}$"
_DECIMAL: Final = r"^-?[0-9]+(\.[0-9]+)?([eE][+-]?[0-9][0-9]?)?$"


# --- SQL ---


class _Binder:
    """Hands out parameters: letters only, behind a prefix that no statement of ours uses."""

    def __init__(self, dialect: Dialect) -> None:
        self.postgres = dialect == "postgres"
        self.values: dict[str, Any] = {}

    def __call__(self, value: Any, kind: str = "") -> str:
        number, letters = len(self.values), ""
        while number >= 0:
            number, letter = divmod(number, 26)
            letters = chr(ord("a") + letter) + letters
            number -= 1
        self.values[f"sel_{letters}"] = value
        return f"cast(:sel_{letters} as {kind})" if kind and self.postgres else f":sel_{letters}"

    def uuid(self, digits: str) -> str:
        return self(UUID(digits) if self.postgres else str(UUID(digits)))


def _one_of(bound: Sequence[str]) -> str:
    return f"= {bound[0]}" if len(bound) == 1 else f"in ({', '.join(bound)})"


def _like(column: str, patterns: Sequence[Pattern], bind: _Binder) -> str:
    """Compare text with any of the patterns. SQLite's LIKE ignores case, so it is GLOB there."""
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
    return "*".join(part if not part or (not quoted and _is_plain(part)) else _quoted(part) for part in pattern.parts)


def _written_path(term: Term) -> str:
    def written(step: str) -> str:
        return f".{step}" if _BARE[term.field].fullmatch(step) and step.isprintable() else f'."{step}"'

    return "".join(f"[{step}]" if isinstance(step, int) else written(step) for step in term.path)


def _is_plain(text: str) -> bool:
    return text.isprintable() and _PLAIN.fullmatch(text) is not None


def _quoted(text: str) -> str:
    def escaped(found: re.Match[str]) -> str:
        each = found[0]
        if each in _ESCAPED:
            return _ESCAPED[each]
        return each if each.isprintable() or ord(each) > _LAST_ESCAPE else f"\\u{ord(each):04x}"

    return f'"{_ODD.sub(escaped, text)}"'


_PLAIN: Final = re.compile(r'[^\s",\\*]+')
_BARE: Final = {
    "payload": re.compile(r'[^\s":=<>!,\\*.\[\]]+'),
    "header": re.compile(r'[^\s":=<>!,\\*]+'),
}
_ODD: Final = re.compile(r"[^ !#-\[\]-~]")
_ESCAPED: Final = {'"': r"\"", "\\": r"\\", "\n": r"\n", "\r": r"\r", "\t": r"\t"}
_LAST_ESCAPE: Final = 0xFFFF


# --- saying ---


def _sentence(terms: Sequence[Term], now: datetime, count: int | None) -> str:
    noun, left = _counted(terms, count)

    def said(*names: str) -> list[str]:
        of_each = ([_said(term, now) for term in left if term.field == name and not term.negated] for name in names)
        return [" and ".join(phrases) for phrases in of_each if phrases]

    failed = said(*_FAILED)
    main = [" ".join((noun, *said(*_NEAR), *(["that failed", *failed] if failed else [])))]
    rest = said(*(name for name in FIELDS if name not in _NEAR + _FAILED))
    if main == [noun] and rest:  # no comma right behind the noun
        main = [f"{noun} {rest.pop(0)}"]
    denied = [
        f"{'failed ' if term.field.startswith('failed') else ''}{_said(term, now)}" for term in left if term.negated
    ]
    return ", ".join(main + rest) + (f", but not {', nor '.join(denied)}" if denied else "")


def _said(term: Term, now: datetime) -> str:
    kind, absolute = FIELDS[term.field], term.at(now)
    instant = FIELDS[absolute.field]
    if not isinstance(instant, _Instant):
        return kind.said(term)
    side = {"<": "before", "<=": "at or before", ">": "after", ">=": "at or after"}[absolute.op]
    at = absolute.values[0]
    clock = f"{at:%H:%M:%S}" if at.second or at.microsecond else f"{at:%H:%M}"
    when = f"{side} {clock}" if at.date() == now.date() else f"{side} {at:%Y-%m-%d} {clock}"
    return f"{instant.verb} {when}".lstrip() if kind is instant else f"{kind.said(term)} ({when})"


def _counted(terms: Sequence[Term], count: int | None) -> tuple[str, list[Term]]:
    """Say how many of what, and return the terms that are still to be said."""
    number = ("" if terms else "all ") if count is None else f"{count or 'no':{',' if count else ''}} "
    ending = "" if count == 1 else "s"
    status = next((term for term in terms if term.field == "status" and not term.negated), None)
    if status is None:
        return f"{number}event{ending}", list(terms)
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
        each = [*each[:_MOST_LISTED], f"{len(each) - _MOST_LISTED} others"]
    return " or ".join((", ".join(each[:-1]), each[-1]) if each[1:] else each)


def _shown(written: str) -> str:
    return written if len(written) <= _LONGEST_SHOWN else written[:_LONGEST_SHOWN] + "…"


def _cut(text: str) -> str:
    return _shown(_quoted(text))


def _amount(noun: str) -> Callable[[str, Sequence[int]], str]:
    def said(op: str, values: Sequence[int]) -> str:
        more = {**_MORE, "<": "fewer than", ":": ""}[op]
        return f"with {more}{' ' if more else ''}{_listed(map(str, values))} {noun}{'' if values[-1] == 1 else 's'}"

    return said


def _ordinal(noun: str) -> Callable[[str, Sequence[int]], str]:
    def said(op: str, values: Sequence[int]) -> str:
        forms = {":": "{1} {0}", ">": "a {1} after {0}", ">=": "{1} {0} or later", "<": "a {1} before {0}",
                 "<=": "{1} {0} or earlier"}  # fmt: skip
        return "of " + forms[op].format(_listed(map(str, values)), noun)

    return said


def _priority(op: str, values: Sequence[int]) -> str:
    names = _listed(Priority(value).name.lower() for value in values)
    forms = {":": "{} priority", ">": "a priority below {}", ">=": "{} priority or below",
             "<": "a priority above {}", "<=": "{} priority or above"}  # fmt: skip
    return "with " + forms[op].format(names)


_MORE: Final = {">": "more than", ">=": "at least", "<": "less than", "<=": "at most"}
_NEAR: Final = ("type", "target", "source", "queue", "group")
_FAILED: Final = ("error-type", "class", "text", "failed", "failed-at")
_MOST_LISTED: Final = 5
_LONGEST_SHOWN: Final = 80


# --- the fields ---

FIELDS: Final[Mapping[str, _Kind]] = {
    "type": _Text("type", phrase="of {}", noun="type"),
    "status": _Word("status", words=tuple(each.value for each in Status), noun="status"),
    "class": _Word("error_class", words=tuple(each.value for each in ErrorClass), noun="error class"),
    "error-type": _ErrorType("error_type", phrase="with {}", noun="error type"),
    "text": _Error("last_error"),
    "group": _Group("fingerprint", phrase="in group {}", noun="group"),
    "target": _Text("target", phrase="for target {}", noun="target"),
    "queue": _Text("queue", phrase="in queue {}", noun="queue"),
    "source": _Text("source", phrase="from {}", noun="source"),
    "subject": _Text("subject", phrase="about {}", noun="subject"),
    "key": _Text("ordering_key", phrase="with ordering key {}", noun="ordering key"),
    "retry-key": _Text("retry_key", phrase="with retry key {}", noun="retry key"),
    "idem": _Text("idempotency_key", phrase="with idempotency key {}", noun="idempotency key"),
    "corr": _Correlation("correlation_id", phrase="correlated to {}", noun="correlation"),
    "cause": _Text("causation_id", phrase="caused by {}", noun="cause"),
    "id": _Id("id", phrase="with id {}"),
    "batch": _Id("batch_id", phrase="in batch {}"),
    "payload": _Json("payload"),
    "header": _Header("headers", operators=(":",)),
    "age": _Span("created_at", instant="created"),
    "created": _Instant("created_at", verb="created"),
    "failed": _Span("ended_at", instant="failed-at"),
    "failed-at": _Instant("ended_at", status=Status.FAILED),
    "due": _Span("due_at", instant="due-at", past=False),
    "due-at": _Instant("due_at", status=Status.PENDING, verb="due"),
    "attempts": _Number("attempts", form=_amount("attempt")),
    "lost": _Number("lost_count", form=_amount("lost attempt")),
    "cycle": _Number("cycle", form=_ordinal("cycle")),
    "generation": _Number("generation", form=_ordinal("generation")),
    "priority": _Number("priority", form=_priority, names={each.name.lower(): each.value for each in Priority}),
    "safe": _Flag(
        "safe_to_retry",
        conditions=("safe_to_retry is false", "safe_to_retry is true"),
        sayings=("unsafe to retry", "safe to retry"),
    ),
    "discarded": _Flag(
        "deleted_at",
        conditions=("deleted_at is null", "deleted_at is not null"),
        sayings=("not discarded", "discarded"),
    ),
}
"""Every field, by the name under which it is written; nothing else can be asked for."""

# The columns' own names, for those who have met them in a table or in JSON.
_ALIASES: Final = {
    "gen": "generation", "error-class": "class", "last-error": "text", "fingerprint": "group", "ordering-key": "key",
    "idempotency-key": "idem", "correlation": "corr", "correlation-id": "corr", "causation": "cause",
    "causation-id": "cause", "batch-id": "batch", "headers": "header", "created-at": "created", "lost-count": "lost",
    "safe-to-retry": "safe",
}  # fmt: skip
