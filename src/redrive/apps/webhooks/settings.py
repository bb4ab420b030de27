"""Settings: what the file and the environment say. Whatever cannot work is refused here, before anything is opened."""

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Self

from redrive import ConfigurationError, Retention, RetryPolicy
from redrive.apps.webhooks.signature import KINDS, TOLERANCE_SECONDS, check_secret

FILE: Final = "webhooks.toml"
DATABASE: Final = "sqlite:///redrive.db"  # where the commands look, too
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
_ID: Final = re.compile(r"header:[A-Za-z0-9-]{1,64}|body:[^\s]{1,200}")
_KEPT: Final = ("content-type", "user-agent", "x-github-event", "x-github-delivery", "webhook-timestamp")


@dataclass(frozen=True, slots=True)
class Source:
    """One sender: how its messages are recognised, and where they go."""

    name: str
    verify: str = "standard"
    secrets: tuple[str, ...] = ()
    deliver: tuple[str, ...] = ()
    id: str | None = None
    """Where the id of a message is: ``header:x-delivery`` or ``body:event.id``; without it, where its kind has it."""
    is_open: bool = False
    """Take unsigned messages from anywhere, not only from this machine."""
    headers: tuple[str, ...] = _KEPT
    keep: str = "json"
    sign: str | None = None
    timeout_seconds: float | None = None
    tolerance_seconds: float = TOLERANCE_SECONDS

    @property
    def type(self) -> str:
        """The type of its events."""
        return f"webhook.{self.name}"


@dataclass(frozen=True, slots=True)
class Settings:
    """Everything there is to say."""

    sources: tuple[Source, ...]
    url: str = DATABASE
    retry: RetryPolicy = field(default_factory=RetryPolicy.stepwise)
    retry_every: bool = True
    """Retry permanent failures, too: a dead letter has had all its attempts."""
    retention: Retention = field(default_factory=Retention)
    max_bytes: int = 262_144
    body_seconds: float = 10.0
    remember_days: float = 30.0

    @classmethod
    def read(cls, environ: Mapping[str, str], folder: Path) -> Self:
        """Read the environment, and the file it names; without one, an open source for this machine only."""
        named = environ.get("WEBHOOKS_CONFIG", "").strip()
        path = folder / (named or FILE)
        if named and not path.is_file():
            raise ConfigurationError(f"WEBHOOKS_CONFIG={named!r}: there is no such file; write it, or leave this out")
        said = _toml(path) if path.is_file() else {"sources": {"try": {"verify": "none", "deliver": "log"}}}
        table = _Table(said, path.name)
        sources = tuple(_source(name, each, path.name, environ) for name, each in table.tables("sources").items())
        if not sources:
            raise ConfigurationError(f"{path.name} has no sources: add [sources.shop] with verify, secrets and deliver")
        found = cls(
            sources=sources,
            url=environ.get("REDRIVE_URL") or DATABASE,
            retry=RetryPolicy.from_env(environ),
            retry_every=_flag(environ, "RETRY_EVERY_FAILURE"),
            retention=_retention(environ),
            max_bytes=int(table.number("max_bytes", 262_144, 1, 16_777_216)),
            body_seconds=table.number("body_seconds", 10.0, 0.1, 300.0),
            remember_days=table.number("remember_days", 30.0, 1.0, 3_650.0),
        )
        table.end()
        return found


def _toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, OSError) as error:
        raise ConfigurationError(f"{path.name} cannot be read: {error}") from None


def _retention(environ: Mapping[str, str]) -> Retention:
    said = {"delivered": environ.get("RETENTION_DELIVERED") or "30d", "failed": environ.get("RETENTION_FAILED") or None}
    for name, value in said.items():
        try:
            Retention.of(**{name: value})
        except ConfigurationError as error:
            raise ConfigurationError(f"RETENTION_{name.upper()}: {error}") from None
    return Retention.of(**said)


def _flag(environ: Mapping[str, str], name: str) -> bool:
    said = environ.get(name, "").strip() or "1"
    if said not in ("0", "1"):
        raise ConfigurationError(f"{name}={said[:64]!r} is neither 1 nor 0")
    return said == "1"


def _source(name: str, said: Mapping[str, Any], file: str, environ: Mapping[str, str]) -> Source:
    place = f"{file}: sources.{name}"
    if not _NAME.fullmatch(name):
        raise ConfigurationError(f"{place}: a source is named by letters, digits, - and _, since it stands in the URL")
    table = _Table(said, place)
    verify = table.choice("verify", tuple(KINDS))
    secrets = tuple(_secret(each, table.place, environ) for each in table.texts("secrets"))
    sign = table.text("sign")
    source = Source(
        name=name,
        verify=verify,
        secrets=secrets,
        deliver=table.texts("deliver"),
        id=table.text("id"),
        is_open=table.flag("open"),
        headers=tuple(dict.fromkeys((*_KEPT, *(each.lower() for each in table.texts("headers"))))),
        keep=table.choice("keep", ("json", "raw")),
        sign=None if sign is None else _secret(sign, place, environ),
        timeout_seconds=table.number("timeout_seconds", 0.0, 0.1, 86_400.0) or None,
        tolerance_seconds=table.number("tolerance_seconds", TOLERANCE_SECONDS, 1.0, 86_400.0),
    )
    table.end()
    _check(source, place)
    return source


def _check(source: Source, place: str) -> None:
    """Refuse what could never work."""
    if source.verify != "none" and not source.secrets:
        raise ConfigurationError(f'{place}: verify = "{source.verify}" needs secrets = ["env:SOME_SECRET"]')
    for each in source.secrets:
        check_secret(source.verify, each, place)
    if source.id is not None and not _ID.fullmatch(source.id):
        raise ConfigurationError(f"{place}: id is header:NAME or body:FIELD, not {source.id!r}")
    if not source.deliver:
        raise ConfigurationError(f'{place}: say where to: deliver = "module:function", a URL, or "log"')
    if source.sign is not None:
        check_secret("standard", source.sign, f"{place}: sign")


def _secret(said: str, place: str, environ: Mapping[str, str]) -> str:
    """Take a secret from the environment, or as it stands there."""
    kind, _, name = said.partition(":")
    if kind != "env":
        return said
    value = environ.get(name, "").strip()
    if not value:
        raise ConfigurationError(f"{place}: the environment has no {name}: set it, or correct {said!r}")
    return value


class _Table:
    """A table of the file, of which everything must be understood."""

    def __init__(self, said: Any, place: str) -> None:
        self.place = place
        if not isinstance(said, dict):
            raise ConfigurationError(f'{place} must be a table, like {{ verify = "standard", … }}')
        self._said = dict(said)
        self._known: list[str] = []

    def text(self, name: str) -> str | None:
        value = self._take(name)
        if value is not None and (not isinstance(value, str) or not value):
            raise self._wrong(name, "a text", value)
        return value

    def texts(self, name: str) -> tuple[str, ...]:
        value = self._take(name)
        several = [] if value is None else value if isinstance(value, list) else [value]
        if not all(isinstance(each, str) and each for each in several):
            raise self._wrong(name, "a text or a list of texts", value)
        return tuple(several)

    def choice(self, name: str, allowed: tuple[str, ...]) -> str:
        """Take one of some words; without one, the first."""
        value = self._take(name)
        if value is None:
            return allowed[0]
        if value not in allowed:
            raise self._wrong(name, f"one of {', '.join(allowed)}", value)
        return str(value)

    def flag(self, name: str) -> bool:
        value = self._take(name)
        if value is not None and not isinstance(value, bool):
            raise self._wrong(name, "true or false", value)
        return bool(value)

    def number(self, name: str, default: float, low: float, high: float) -> float:
        value = self._take(name)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
            raise self._wrong(name, f"a number from {low:g} to {high:g}", value)
        return float(value)

    def tables(self, name: str) -> dict[str, Any]:
        value = self._take(name)
        if value is not None and not isinstance(value, dict):
            raise self._wrong(name, "a table", value)
        return value or {}

    def end(self) -> None:
        """Refuse what nobody has asked for: it is a slip of the pen."""
        if self._said:
            odd, known = ", ".join(sorted(self._said)), ", ".join(self._known)
            raise ConfigurationError(f"{self.place} has {odd}, which nobody knows: there are {known}")

    def _take(self, name: str) -> Any:
        self._known.append(name)
        return self._said.pop(name, None)

    def _wrong(self, name: str, wanted: str, value: object) -> ConfigurationError:
        return ConfigurationError(f"{self.place}: {name} must be {wanted}, not {value!r:.80}")
