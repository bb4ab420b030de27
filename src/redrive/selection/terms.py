"""Terms: what a selection is made of, and its bounds.

A term is data: the name of a field, an operator and values. What it means is up to the field (``fields``).
"""

import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

MAX_LENGTH: Final = 4_096
MAX_TERMS: Final = 50
MAX_ALTERNATIVES: Final = 100

Path = tuple[str | int, ...]

ORDERED: Final = (">", ">=", "<", "<=")
COMPARE: Final[Mapping[str, Callable[[Any, Any], bool]]] = {
    ":": operator.eq, ">": operator.gt, ">=": operator.ge, "<": operator.lt, "<=": operator.le,
}  # fmt: skip
REVERSED: Final = {">": "<", ">=": "<=", "<": ">", "<=": ">="}


@dataclass(frozen=True, slots=True)
class Term:
    """One condition: a field (and a path inside it), an operator of ``: > >= < <=``, and its alternatives."""

    field: str
    op: str
    values: tuple[Any, ...]
    negated: bool = False
    path: Path = ()


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
        if not is_json_literal(self.text) or self.text in JSON_WORDS:
            return None
        if self.text.lstrip("-").isdigit():
            return int(self.text) if is_whole(self.text) else None
        value = float(self.text)
        return value if is_comparable(value) else None


def is_whole(text: str) -> bool:
    """Tell whether this is a whole number that every store can hold."""
    return _WHOLE.fullmatch(text) is not None and -_LARGEST <= int(text) <= _LARGEST


def is_json_literal(text: str) -> bool:
    """Tell whether JSON would read this as something other than a string, a list or an object."""
    return _JSON_LITERAL.fullmatch(text) is not None


def is_comparable(number: float) -> bool:
    """Tell whether every store compares this number in a payload alike."""
    return -_LARGEST_JSON <= number <= _LARGEST_JSON


JSON_WORDS: Final = ("true", "false", "null")
_JSON_LITERAL: Final = re.compile(r"true|false|null|-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
_WHOLE: Final = re.compile(r"-?[0-9]{1,19}")
_LARGEST: Final = 2**63 - 1
_LARGEST_JSON: Final = 1e100
