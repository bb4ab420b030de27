"""Settings: what the environment says, read once; a value that cannot be used is an error at start."""

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, Self

from redrive import ConfigurationError

_MOST_KEPT: Final = 1_000


@dataclass(frozen=True, slots=True)
class Settings:
    """How the system runs."""

    url: str
    dispatch: Callable[..., Any] | None
    timeout: str
    isolation: Literal["process"] | None
    unknown_kept: int
    token: str | None

    @classmethod
    def read(cls, environ: Mapping[str, str]) -> Self:
        """Read ``REDRIVE_URL`` and ``ADJUDICATION_…``."""
        named = environ.get("ADJUDICATION_DISPATCH", "")
        return cls(
            url=environ.get("REDRIVE_URL") or "sqlite:///adjudication.db",
            dispatch=_function(named) if named else None,
            timeout=environ.get("ADJUDICATION_TIMEOUT") or "30s",
            isolation=_isolation(environ.get("ADJUDICATION_ISOLATION", "process")),
            unknown_kept=_kept(environ.get("ADJUDICATION_UNKNOWN_KEPT", "200")),
            token=environ.get("ADJUDICATION_TOKEN") or None,
        )


def _function(named: str) -> Callable[..., Any]:
    module, colon, name = named.partition(":")
    if not colon or not module or not name:
        raise ConfigurationError(
            f"ADJUDICATION_DISPATCH={named!r} names no function: write module:function, like rail:pay"
        )
    try:
        found = getattr(importlib.import_module(module), name, None)
    except ImportError as error:
        raise ConfigurationError(f"ADJUDICATION_DISPATCH={named!r} cannot be imported: {error}") from error
    if not callable(found):
        raise ConfigurationError(f"ADJUDICATION_DISPATCH={named!r} is no function: define {name} in {module}")
    return found  # type: ignore[no-any-return]


def _isolation(said: str) -> Literal["process"] | None:
    if said not in ("process", "none"):
        raise ConfigurationError(f"ADJUDICATION_ISOLATION is 'process' or 'none', not {said!r}")
    return "process" if said == "process" else None


def _kept(said: str) -> int:
    if not said.isascii() or not said.isdigit() or not 1 <= int(said) <= _MOST_KEPT:
        raise ConfigurationError(
            f"ADJUDICATION_UNKNOWN_KEPT={said[:64]!r} is not a whole number from 1 to {_MOST_KEPT:,}, like '200'"
        )
    return int(said)
