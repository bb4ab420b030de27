"""Tuning: what holds for a handler now, who says so, and what would hold under other values."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from typing import Any, Final

from redrive import override
from redrive.app import Redrive
from redrive.errors import NotFound
from redrive.override import FIELDS, RETRY_FIELDS, Override, Terms
from redrive.policy import RetryPolicy

_MOST_WAITS: Final = 1_000


@dataclass(frozen=True, slots=True)
class Standing:
    """What holds for a name, and who says so."""

    name: str
    terms: Terms
    said_by: Mapping[str, str]

    @property
    def values(self) -> dict[str, Any]:
        """What can be set, as it is."""
        values = {name: getattr(self.terms.retry, name) for name in RETRY_FIELDS}
        return {
            **values,
            "timeout": self.terms.timeout,
            "concurrency": self.terms.concurrency,
            "rate": self.terms.rate,
        }

    def to_json(self) -> dict[str, Any]:
        """Return a plain dict."""
        return {
            "name": self.name,
            "values": {name: _plain(value) for name, value in self.values.items()},
            "said_by": dict(self.said_by),
            "waits": [asdict(wait) for wait in islice(self.terms.retry.waits(), _MOST_WAITS)],
        }


def standing(name: str, of: Redrive | None, overrides: Sequence[Override], values: Mapping[str, Any]) -> Standing:
    """Put together what the handler says, what operators say, and what would be said now."""
    handler = None if of is None else of.handlers.get(name)
    if of is not None and handler is None and not name.endswith("*"):
        known = ", ".join(sorted(of.handlers)) or "no handler"
        raise NotFound(f"the app has no handler for {name[:80]!r}: it has {known[:300]}")
    terms = Terms((of.retry if of else None) or RetryPolicy())
    source = "default" if of is None else "app"
    if handler is not None:
        terms = Terms(handler.retry or terms.retry, handler.timeout, handler.concurrency, handler.rate)
        source = "handler"
    said_by = dict.fromkeys(FIELDS, source)
    for each in override.matching(overrides, handler.types if handler else (name,), name):
        terms = override.with_values(terms, each.values)
        said_by.update(dict.fromkeys(each.values, f"{each.pattern}, set by {each.set_by}"))
    said_by.update(dict.fromkeys(values, "preview"))
    return Standing(name, override.with_values(terms, values), said_by)


def _plain(value: Any) -> Any:
    return value if value is None or isinstance(value, int | float | str) else str(value)
