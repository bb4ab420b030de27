"""SQL: what the conditions of both stores are made of.

Values are bound, never written out. Where the stores differ, it is here: how text is compared, how a place in a JSON
document is reached, and what must not reach the database's own conversions, since one odd row would fail the list.
"""

import re
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Final, Literal
from uuid import UUID

from redrive.selection.terms import JSON_WORDS, JsonLiteral, Path, Pattern

Dialect = Literal["sqlite", "postgres"]


class Binder:
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


def one_of(bound: Sequence[str]) -> str:
    """Compare with one value or several."""
    return f"= {bound[0]}" if len(bound) == 1 else f"in ({', '.join(bound)})"


def like(column: str, patterns: Sequence[Pattern], bind: Binder) -> str:
    """Compare text with any of the patterns. SQLite's LIKE ignores case, so it is GLOB there."""
    exact = [bind(each.parts[0], "text") for each in patterns if each.is_exact]
    parts = [f"{column} {one_of(exact)}"] if exact else []
    for each in patterns:
        if each.is_anything:
            parts.append(f"{column} is not null")
        elif not each.is_exact and bind.postgres:
            escaped = "%".join(_LIKE.sub(r"\\\g<0>", part) for part in each.parts)
            parts.append(f"{column} like {bind(escaped, 'text')}")
        elif not each.is_exact:
            escaped = "*".join(_GLOB.sub(r"[\g<0>]", part) for part in each.parts)
            parts.append(f"{column} glob {bind(escaped)}")
    return " or ".join(parts)


_LIKE: Final = re.compile(r"[%_\\]")
_GLOB: Final = re.compile(r"[*?\[]")


# --- a place in a JSON column ---


class Place(ABC):
    """A place in a JSON column: its type, and what stands there."""

    string: str  # what the store calls a string
    kind: str
    text: str

    def __init__(self, column: str, bind: Binder) -> None:
        self.column, self.bind = column, bind

    def condition(self, op: str, values: Sequence[Pattern | JsonLiteral]) -> str:
        """Compare what stands here with any of the values."""
        return self.guarded(" or ".join(self._fits(op, value) for value in values))

    def _fits(self, op: str, value: Pattern | JsonLiteral) -> str:
        if isinstance(value, Pattern):
            if value.is_anything:
                return f"{self.kind} is not null"
            return f"case {self.kind} when '{self.string}' then {like(self.text, [value], self.bind)} end"
        cases = []
        if op == ":":
            cases.append(f"when '{self.string}' then {self.text} = {self.bind(value.text, 'text')}")
            if value.text in JSON_WORDS:
                cases.append(self.word(value.text))
        if value.number is not None:
            cases.append(self.number("=" if op == ":" else op, value.number))
        return f"case {self.kind} {' '.join(cases)} end"

    @abstractmethod
    def guarded(self, condition: str) -> str:
        """Ask only of what the database can read."""

    @abstractmethod
    def word(self, word: str) -> str: ...

    @abstractmethod
    def number(self, op: str, number: float) -> str: ...


class SqlitePlace(Place):
    """``$."name"[0]``, bound as one; a name holds nothing that could end its quotes."""

    string = "text"

    def __init__(self, column: str, path: Path, bind: Binder) -> None:
        super().__init__(column, bind)
        steps = "".join(f"[{step}]" if isinstance(step, int) else f'."{step}"' for step in path)
        at = bind(f"${steps}")
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


class PostgresPlace(Place):
    """``column -> 'name' -> 0``, each step bound: a name finds only fields, a number only elements."""

    string = "string"
    kind, text = "json_typeof(held)", "(held #>> array[]::text[])"

    def __init__(self, column: str, path: Path, bind: Binder) -> None:
        super().__init__(column, bind)
        steps = [bind(step, "int" if isinstance(step, int) else "text") for step in path]
        self.held = " -> ".join((column, *steps))

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
