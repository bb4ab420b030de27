"""Spelling: how values and paths stand in a selection, read and written back.

Quotes and backslashes make every text sayable. What is written here reads as what it was; a mistake is a
``SelectionError`` that points at its characters. Next: a field makes sense of each value, ``reading`` of the whole.
"""

import re
from dataclasses import dataclass
from typing import Final

from redrive.errors import SelectionError
from redrive.selection.terms import MAX_ALTERNATIVES, Path, Pattern

_MAX_STARS: Final = 10  # in one value
_MAX_DEPTH: Final = 64  # of a path; no payload is deeper by default


@dataclass(frozen=True, slots=True)
class Piece:
    """Some characters of a selection, to point at."""

    source: str
    start: int
    end: int

    @property
    def written(self) -> str:
        return self.source[self.start : self.end]

    def error(self, reason: str) -> SelectionError:
        return SelectionError(reason, self.source, self.start, max(1, self.end - self.start))


@dataclass(frozen=True, slots=True)
class Raw(Piece):
    """A value as it stands in the text; ``plain`` when nothing in it was quoted, escaped or a wildcard."""

    pattern: Pattern
    plain: bool

    @property
    def text(self) -> str:
        """The value, where a wildcard means nothing."""
        if not self.pattern.is_exact:
            raise self.error("there are no wildcards here: write it in full")
        return self.pattern.parts[0]


# --- values ---


def read_values(text: str, at: int) -> tuple[list[Raw], int]:
    """Read alternatives, and say where they end."""
    raws = []
    while True:
        raw = _read_value(text, at)
        raws.append(raw)
        at = raw.end
        if text[at : at + 1] != "," or len(raws) > MAX_ALTERNATIVES:  # that many are refused, not read to the end
            return raws, at
        at += 1


def _read_value(text: str, start: int) -> Raw:
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
    raw = Raw(text, start, at, Pattern(tuple(parts)), plain)
    if len(parts) > _MAX_STARS + 1:
        raise raw.error(f"a value has at most {_MAX_STARS} wildcards")
    return raw


def _unescaped(text: str, start: int, end: int) -> str:
    def meaning(found: re.Match[str]) -> str:
        code = found[1]
        char = chr(int(code[1:], 16)) if len(code) > 1 else _ESCAPES.get(code, code)
        if (len(code) == 1 and char.isalnum()) or UNSTORABLE.match(char):
            reason = r'a backslash stands before " \ * or a comma, n, r, t, or a code like u00e9; \\ is a backslash'
            raise SelectionError(reason, text, start + found.start(), len(found[0]))
        return char

    inner = text[start:end]
    return _ESCAPE.sub(meaning, inner) if "\\" in inner else inner


def write_pattern(pattern: Pattern, *, quoted: bool = False) -> str:
    """Write a pattern so that it reads as itself, in quotes where it must be or where that is wanted."""
    if pattern.parts == ("",):
        return '""'
    return "*".join(part if not part or (not quoted and _is_plain(part)) else quote(part) for part in pattern.parts)


def quote(text: str) -> str:
    """Write a text in quotes, printable whatever is in it."""

    def escaped(found: re.Match[str]) -> str:
        each = found[0]
        if each in _ESCAPED:
            return _ESCAPED[each]
        return each if each.isprintable() or ord(each) > _LAST_ESCAPE else f"\\u{ord(each):04x}"

    return f'"{_ODD.sub(escaped, text)}"'


def _is_plain(text: str) -> bool:
    return text.isprintable() and _PLAIN.fullmatch(text) is not None


# --- paths ---


def read_path(text: str, at: int, end: int) -> Path:
    """Read ``.name``, ``."any name"`` and ``[0]``, as many as there are."""
    path: list[str | int] = []
    while at < end:
        step = _STEP.match(text, at, end)
        if step is None:
            raise Piece(text, at, end).error('a path goes on like .name, ."any name" or [0]')
        if len(path) == _MAX_DEPTH:
            raise Piece(text, at, end).error(f"a path has at most {_MAX_DEPTH} steps")
        path.append(int(step[1]) if step[1] else read_name(text, at + 1, step.end()))
        at = step.end()
    return tuple(path)


def read_name(text: str, at: int, end: int) -> str:
    """Read a name in a path. One with quotes or backslashes could not be found on every version of SQLite."""
    name = text[at:end]
    if len(name) > 1 and name[0] == name[-1] == '"':
        name = name[1:-1]
    if not name or _NO_NAME.search(name):
        raise Piece(text, at, end).error("a name is not empty and holds no quotes, backslashes or control characters")
    return name


def write_path(path: Path, bare: re.Pattern[str]) -> str:
    """Write a path; a name that is not ``bare`` stands in quotes."""

    def written(step: str) -> str:
        return f".{step}" if bare.fullmatch(step) and step.isprintable() else f'."{step}"'

    return "".join(f"[{step}]" if isinstance(step, int) else written(step) for step in path)


UNSTORABLE: Final = re.compile("[\x00\ud800-\udfff]")
BARE_STEP: Final = re.compile(r'[^\s":=<>!,\\*.\[\]]+')
BARE_HEADER: Final = re.compile(r'[^\s":=<>!,\\*]+')
_STEP: Final = re.compile(rf'\[([0-9]{{1,6}})\]|\.(?:{BARE_STEP.pattern}|"[^"]*")')
_NO_NAME: Final = re.compile(r'["\\\x00-\x1f\x7f]')
_TOKEN: Final = re.compile(r'[^\s",\\*]++|\*|\\(?:u[0-9a-fA-F]{4}|.)|"(?:[^"\\]|\\.)*"', re.DOTALL)
_PLAIN: Final = re.compile(r'[^\s",\\*]+')
_ESCAPE: Final = re.compile(r"\\(u[0-9a-fA-F]{4}|.)", re.DOTALL)
_ESCAPES: Final = {"n": "\n", "r": "\r", "t": "\t"}
_ESCAPED: Final = {'"': r"\"", "\\": r"\\", "\n": r"\n", "\r": r"\r", "\t": r"\t"}
_ODD: Final = re.compile(r"[^ !#-\[\]-~]")
_LAST_ESCAPE: Final = 0xFFFF
