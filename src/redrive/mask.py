"""Mask: hide the values of fields whose names say that they are secret.

A field is meant when its name has the words of a mask in it, however they are joined: ``card`` means ``card``,
``cardNumber`` and ``billing_card``, not ``discard``. What such a field holds is hidden whole, and so are the same words
where a text repeats them (an error that quotes the payload). Nothing is changed in the database.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final

from redrive.errors import ConfigurationError

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
        return self._value(value, 0)

    def _value(self, value: Any, depth: int) -> Any:
        if depth > _DEEPEST:
            return HIDDEN
        if isinstance(value, Mapping):
            return {
                name: HIDDEN if inner is not None and self.hides(str(name)) else self._value(inner, depth + 1)
                for name, inner in value.items()
            }
        if isinstance(value, list | tuple):
            return [self._value(inner, depth + 1) for inner in value]
        return value

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
        return {text for value in values for text in self._secrets(value, 0, hidden=False)}

    def _secrets(self, value: Any, depth: int, *, hidden: bool) -> Iterator[str]:
        if depth > _DEEPEST:
            return
        if isinstance(value, Mapping):
            for name, inner in value.items():
                yield from self._secrets(inner, depth + 1, hidden=hidden or self.hides(str(name)))
        elif isinstance(value, list | tuple):
            for inner in value:
                yield from self._secrets(inner, depth + 1, hidden=hidden)
        elif hidden and value is not None and not isinstance(value, bool):
            text = value if isinstance(value, str) else json.dumps(value)
            if len(text) >= (_SHORTEST if isinstance(value, str) else _SHORTEST_NUMBER):
                yield text

    def about(self, text: str, *stored: str) -> str:
        """Hide in a text about an event what is secret in its payload and headers, given as they are stored."""
        return self.text(text, self.secrets(*map(json.loads, stored)))

    def everywhere(self, told: Any, *, secrets: Iterable[str] = ()) -> Any:
        """Hide secret fields, and secrets that any text inside repeats."""
        return self._everywhere(self.value(told), sorted(set(secrets), key=len, reverse=True))

    def _everywhere(self, value: Any, secrets: list[str]) -> Any:
        if isinstance(value, str):
            return self.text(value, secrets)
        if isinstance(value, dict):
            return {name: self._everywhere(inner, secrets) for name, inner in value.items()}
        if isinstance(value, list):
            return [self._everywhere(inner, secrets) for inner in value]
        return value


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
