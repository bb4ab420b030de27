"""Reading: terms out of a text, each mistake pointed at.

A term is an optional negation, a field with what follows its name, an operator and values; a bare word is a value of
``text``. The field decides which operators it takes and what a value is (``fields``); how values are spelled is the
same for all (``spelling``).
"""

import re
from difflib import get_close_matches
from typing import Final

from redrive.errors import SelectionError
from redrive.selection.fields import ALIASES, FIELDS
from redrive.selection.phrases import cut, listed
from redrive.selection.spelling import UNSTORABLE, Piece, read_values
from redrive.selection.terms import MAX_ALTERNATIVES, MAX_LENGTH, MAX_TERMS, Path, Term


def read(text: str) -> tuple[Term, ...]:
    """Read all terms, or point at what is wrong."""
    if len(text) > MAX_LENGTH:
        reason = f"a selection has at most {MAX_LENGTH:,} characters, this one has {len(text):,}"
        raise SelectionError(reason, text, MAX_LENGTH)
    if (bad := UNSTORABLE.search(text)) is not None:
        raise SelectionError("no database holds this character in its text: leave it out", text, bad.start())
    terms: list[Term] = []
    alternatives = 0
    at = _end(_SPACE, text, 0)
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
        at = _end(_SPACE, text, at)
    return tuple(terms)


def _read_term(text: str, at: int) -> tuple[Term, int]:
    at, negated = _read_negation(text, at)
    head = Piece(text, at, _end(_HEAD, text, at))
    found = _OPERATOR.match(text, head.end)
    name, path, op = "text", Path(), ":"
    if found is None:
        _check_bare(head)
    else:
        name, path = _read_field(head)
        op, at = _SAME.get(found[0], found[0]), found.end()
        if found[0] == "!=":
            negated = not negated
    kind = FIELDS[name]
    if op not in kind.operators:
        allowed = (":", "=", "!=", *kind.operators[1:]) if ":" in kind.operators else kind.operators
        raise SelectionError(f"{name} takes {' '.join(allowed)} here", text, head.end, len(op))
    raws, at = read_values(text, at)
    if op != ":" and len(raws) > 1:
        raise raws[1].error(f"{op} takes one value")
    values = tuple(kind.read(raw) for raw in raws)
    return kind.checked(Term(name, op, values, negated, path), raws), at


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


def _check_bare(head: Piece) -> None:
    word = head.written.lower()
    if word == "and":
        raise head.error("all terms must hold anyway: leave this out, or quote it to search for it")
    if word == "or":
        raise head.error("alternatives are written type:a,b; quote this to search for it")
    if word.startswith("("):
        reason = "there are no brackets: all terms must hold; quote this to search for it"
        raise SelectionError(reason, head.source, head.start)


def _read_field(head: Piece) -> tuple[str, Path]:
    if head.start == head.end:
        raise head.error("a field must stand right before this, without a space: age>1h")
    rest = _end(_NAME, head.source, head.start)
    name = _known(head.source[head.start : rest])
    path = FIELDS[name].read_path(head, rest) if name in FIELDS else None
    if path is not None:
        return name, path
    close = get_close_matches(_folded(head.written[:40]), [*FIELDS, *ALIASES])
    names = list(dict.fromkeys(map(_known, close)))
    hint = f"did you mean {listed(names)}?" if names else f"there are {', '.join(FIELDS)}."
    raise head.error(f"there is no field {cut(head.written)}: {hint} To search for text, quote it")


def _known(written: str) -> str:
    name = _folded(written)
    return ALIASES.get(name, name)


def _folded(written: str) -> str:
    return written.lower().replace("_", "-")


def _end(pattern: re.Pattern[str], text: str, at: int) -> int:
    """Say where this ends that may also be nothing."""
    found = pattern.match(text, at)
    return at if found is None else found.end()


_SPACE: Final = re.compile(r"\s*")
_NEGATION: Final = re.compile(r"-|not(?:\s+|$)", re.IGNORECASE)
# No group is possessive: before Python 3.11.5 such a one loses what its branches backtrack (python/cpython#106052), and
# `status!=failed` was a search for that text. Each branch begins with another character, so nothing is tried twice.
_HEAD: Final = re.compile(r'(?:[^\s":=<>!\\]|!(?!=)|\\.|"(?:[^"\\]|\\.)*")*', re.DOTALL)
_NAME: Final = re.compile(r"[a-z_-]+", re.IGNORECASE | re.ASCII)
_OPERATOR: Final = re.compile(r">=|<=|!=|[:=<>]")
_SAME: Final = {"=": ":", "!=": ":"}
