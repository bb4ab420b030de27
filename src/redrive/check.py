"""Check: what a user writes, where it is written.

Each function takes a value and the name of its parameter, and returns the value or raises ``ConfigurationError`` in one
sentence: what the parameter takes, and what was given. Nothing has been registered or stored by then.
"""

import math
import unicodedata
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, Final, NoReturn, TypeVar

from redrive.duration import MAX_SECONDS, parse_duration
from redrive.errors import BadDuration, ConfigurationError

T = TypeVar("T")

NAME_LIMIT: Final = 255
LARGEST: Final = 2**63 - 1
_MOST_SHOWN: Final = 64


def refuse(name: str, takes: str, value: object) -> NoReturn:
    """Say what a parameter takes, and what it was given."""
    raise ConfigurationError(f"{name} takes {takes}, not {shown(value)}")


def text(value: object, name: str, *, limit: int = NAME_LIMIT, like: str = "") -> str:
    """Take a text for people and programs: not blank, on one line, without control characters, not too long."""
    example = f" like {like!r}" if like else ""
    if not isinstance(value, str):
        refuse(name, f"a text{example}", value)
    if not value.strip():
        refuse(name, f"a text{example} that is not empty", value)
    if len(value) > limit:
        raise ConfigurationError(f"{name} takes at most {limit:,} characters, not {len(value):,}")
    if has_controls(value):
        refuse(name, f"a text{example} on one line, without control characters", value)
    return value


def has_controls(value: str) -> bool:
    """Say whether a text has line breaks, control characters or half a character."""
    return not value.isprintable() and any(unicodedata.category(each) in ("Cc", "Cs", "Zl", "Zp") for each in value)


def texts(value: object, name: str, *, like: str = "", limit: int = NAME_LIMIT) -> tuple[str, ...]:
    """Take several texts, in a list or a tuple; one text alone is most often a mistake."""
    if isinstance(value, str | bytes | Mapping) or not isinstance(value, Iterable):
        refuse(name, f"a list of texts{f' like [{like!r}]' if like else ''}", value)
    return tuple(text(each, f"each of {name}", like=like, limit=limit) for each in value)


def whole(value: object, name: str, least: int = 1, most: int = LARGEST) -> int:
    """Take a whole number."""
    if type(value) is not int or not least <= value <= most:
        above = f"at least {least:,}" if most == LARGEST else f"from {least:,} to {most:,}"
        refuse(name, f"a whole number, {above}", value)
    return value


def number(value: object, name: str, least: float, most: float) -> float:
    """Take a number."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= most:
        refuse(name, f"a number from {least:,g} to {most:,g}", value)
    return float(value)


def seconds(value: object, name: str, least: float = 0.0, most: float = MAX_SECONDS) -> float:
    """Take a span of time, in seconds or in units."""
    try:
        found = parse_duration(value)  # type: ignore[arg-type]  # what it cannot read it refuses
    except BadDuration as error:
        raise BadDuration(f"{name}: {error}") from None
    if not least <= found <= most:
        bounds = f"at least {least:g}s" if most == MAX_SECONDS else f"from {least:g}s to {most:g}s"
        refuse(name, f"a span of time, {bounds}", value)
    return found


def flag(value: object, name: str) -> bool:
    """Take True or False."""
    if not isinstance(value, bool):
        refuse(name, "True or False", value)
    return value


def choice(value: T, name: str, among: Collection[T]) -> T:
    """Take one of a few words."""
    if isinstance(value, str) and value in among:
        return value
    return refuse(name, " or ".join(map(repr, among)), value)


def a(value: T, name: str, kind: type | tuple[type, ...], takes: str) -> T:
    """Take an object of a class."""
    if not isinstance(value, kind):
        refuse(name, takes, value)
    return value


def function(value: T, name: str, takes: str = "a function") -> T:
    """Take something that can be called."""
    if not callable(value) or isinstance(value, type):
        refuse(name, takes, value)
    return value


def maybe(value: T | None, taking: Callable[..., Any], name: str, *rest: Any, **options: Any) -> Any:
    """Take None, or what another check takes."""
    return None if value is None else taking(value, name, *rest, **options)


def shown(value: object) -> str:
    """Write a value that may be anything, on one line and in few characters."""
    if isinstance(value, int) and abs(value) > LARGEST:  # repr() of a huge int raises
        return "a number this large"
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    try:
        said = repr(value)
    except Exception:  # noqa: BLE001 - a stranger's class
        said = f"a {type(value).__qualname__}"
    said = said.replace("\n", " ")
    return said if len(said) <= _MOST_SHOWN else said[:_MOST_SHOWN] + "…"
