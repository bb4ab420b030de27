"""Mask: hide the values of fields whose names say that they are secret.

A field is meant when its name has the words of a mask in it, however they are joined: ``card`` means ``card``,
``cardNumber`` and ``billing_card``, not ``discard``. What such a field holds is hidden whole, and so are the same words
where a text repeats them (an error that quotes the payload). Nothing is changed in the database.
"""

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final

from redrive.errors import ConfigurationError, PayloadInvalid
from redrive.payload import decode

HIDDEN: Final = "•••"

DEFAULT_NAMES: Final = (
    "password", "passwd", "passphrase", "secret", "token", "authorization", "cookie", "credential", "credentials",
    "api key", "apikey", "private key", "access key", "session id", "card", "cvc", "cvv", "iban", "ssn", "pin",
)  # fmt: skip

_WORD: Final = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+|[^\W\d_a-zA-Z]+")
_SHORTEST: Final = 4  # a shorter secret would hide half of every text
_SHORTEST_NUMBER: Final = 3  # where it stands alone: the digits on the back of a card are three
_DEEPEST: Final = 200
_REMEMBERED: Final = 100
_BEARER: Final = re.compile(r"(?i)\b(bearer|basic)(\s+)[A-Za-z0-9._~+/=-]{8,}")


@lru_cache(maxsize=4_096)  # the same few names come again and again
def _hides(hidden: tuple[tuple[str, ...], ...], name: str) -> bool:
    found = _words(name)
    return any(
        found[start : start + len(wanted)] == wanted
        for wanted in hidden
        for start in range(len(found) - len(wanted) + 1)
    )


@dataclass(frozen=True, slots=True)
class Mask:
    """Which names are secret."""

    names: tuple[str, ...] = DEFAULT_NAMES
    _words: tuple[tuple[str, ...], ...] = field(init=False, repr=False, compare=False)
    _said: re.Pattern[str] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        words = tuple(_words(name) for name in self.names)
        if not all(words):
            raise ConfigurationError(f"mask has a name without letters: {list(self.names)!r}")
        object.__setattr__(self, "_words", words)
        object.__setattr__(self, "_said", _assignments(words))

    @classmethod
    def of(cls, names: Sequence[str]) -> "Mask":
        """Read the names an app was given."""
        if isinstance(names, str):
            raise ConfigurationError(f"mask must be a list of names: mask=['card', 'iban'], not {names!r}")
        return DEFAULT if names == DEFAULT_NAMES else cls(tuple(names))  # its pattern takes half of the time of an app

    def hides(self, name: str) -> bool:
        """Say whether a field of this name is secret."""
        hides = _hides if len(name) <= _REMEMBERED else _hides.__wrapped__  # a name may be as long as a payload
        return hides(self._words, name)

    def value(self, value: Any) -> Any:
        """Return decoded JSON with the secret fields hidden; what is empty stays."""
        return _rebuilt(value, lambda name, inner: inner is not None and self.hides(name), lambda scalar: scalar)

    def text(self, text: str, secrets: Iterable[str] = ()) -> str:
        """Hide in a text what follows a secret name (``password=…``), and the secrets themselves."""
        for secret in sorted(set(secrets), key=len, reverse=True):
            if len(secret) >= _SHORTEST:
                text = text.replace(secret, HIDDEN)
            else:
                text = re.sub(rf"(?<![\w.]){re.escape(secret)}(?!\w)", HIDDEN, text)
        if not self.names:
            return text
        text = _BEARER.sub(rf"\1\2{HIDDEN}", text)
        return self._said.sub(lambda match: match[0][: match.start("value") - match.start()] + HIDDEN, text)

    def secrets(self, *values: Any) -> set[str]:
        """Collect what is hidden in these values, so that texts that quote it can be hidden too."""
        found: set[str] = set()
        waiting = [(value, False) for value in values]
        while waiting:
            value, hidden = waiting.pop()
            if isinstance(value, Mapping):
                waiting += [(inner, hidden or self.hides(str(name))) for name, inner in value.items()]
            elif isinstance(value, list | tuple):
                waiting += [(inner, hidden) for inner in value]
            elif hidden and (text := _as_secret(value)) is not None:
                found.add(text)
        return found

    def stored_secrets(self, *stored: Any) -> set[str]:
        """Collect what is secret in a payload and headers, given as they are stored; unreadable ones have none."""
        found: set[str] = set()
        for text in stored:
            with suppress(PayloadInvalid):
                found |= self.secrets(decode(text))
        return found

    def about(self, text: str, *stored: str) -> str:
        """Hide in a text about an event what is secret in its payload and headers, given as they are stored."""
        return self.text(text, self.stored_secrets(*stored))

    def everywhere(self, told: Any, *, secrets: Iterable[str] = ()) -> Any:
        """Hide secret fields, and secrets that any text inside repeats."""
        ordered = sorted(set(secrets), key=len, reverse=True)
        return _rebuilt(
            told,
            lambda name, inner: inner is not None and self.hides(name),
            lambda scalar: self.text(scalar, ordered) if isinstance(scalar, str) else scalar,
        )


def _rebuilt(told: Any, hides: Callable[[str, Any], bool], shown: Callable[[Any], Any]) -> Any:
    """Copy decoded JSON with some fields hidden, however deep it is: without recursion, and cut off far down."""
    result: list[Any] = []
    waiting: list[tuple[Any, Any, Any, int]] = [(told, result, None, 0)]  # value, where it goes, under which key, depth
    while waiting:
        value, into, key, depth = waiting.pop()
        made: Any
        if depth > _DEEPEST:
            made = HIDDEN
        elif isinstance(value, Mapping):
            made = dict.fromkeys(value)
            for name, inner in value.items():
                if hides(str(name), inner):
                    made[name] = HIDDEN
                else:
                    waiting.append((inner, made, name, depth + 1))
        elif isinstance(value, list | tuple):
            made = [None] * len(value)
            waiting += [(inner, made, place, depth + 1) for place, inner in enumerate(value)]
        else:
            made = shown(value)
        if key is None and into is result:
            result.append(made)
        else:
            into[key] = made
    return result[0]


def _as_secret(value: Any) -> str | None:
    """Write a secret as texts quote it; None when it is too short to be looked for, or endless."""
    if value is None or isinstance(value, bool):
        return None
    if isinstance(value, str):
        return value if len(value) >= _SHORTEST else None
    try:
        text = json.dumps(value)
    except (ValueError, TypeError):  # an integer that Python does not write
        return None
    return text if len(text) >= _SHORTEST_NUMBER else None


def kept(edited: Any, original: Any) -> Any:
    """Put back what an editor was shown as hidden and has left alone."""
    if edited == HIDDEN:
        return original
    if isinstance(edited, dict) and isinstance(original, dict):
        return {name: kept(inner, original[name]) if name in original else inner for name, inner in edited.items()}
    if isinstance(edited, list) and isinstance(original, list) and len(edited) == len(original):
        return [kept(one, other) for one, other in zip(edited, original, strict=True)]
    return edited


def _words(name: str) -> tuple[str, ...]:
    return tuple(word.lower() for word in _WORD.findall(name))


def _assignments(words: Iterable[tuple[str, ...]]) -> re.Pattern[str]:
    """Match ``name=value``, ``name: value`` and ``'name': 'value'``, and name the value."""
    names = "|".join("[-_ ]?".join(map(re.escape, each)) for each in words) or r"(?!)"
    quoted = r"\"(?:[^\"\\]|\\.)*\"|'(?:[^'\\]|\\.)*'"
    return re.compile(
        rf"(?i)(?<![a-z])(?:{names})(?![a-z])[-_\w]*[\"']?\s*[:=]\s*(?P<value>{quoted}|[^\s,;&\"'\])}}]+)"
    )


DEFAULT: Final = Mask()
"""What is hidden when an app says nothing."""
