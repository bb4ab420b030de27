"""Override: what an operator has said about policies while everything runs.

An override has a pattern (a target, a type, ``order.*``, ``*``) and says some of: how attempts are repeated, how long
one may take, how many run at once, how many start in a span of time. The rest stays what the handler says, or the app.
When several patterns match a handler, each value comes from the most specific pattern that says something about it:
its target before its type, a type before a pattern, a longer pattern before a shorter one.

Every change has a name and a reason, and is on the trail. Workers read what has changed every few seconds.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from redrive import check
from redrive.duration import span
from redrive.errors import BadDuration, ConfigurationError, Refused
from redrive.instant import instant_of, iso
from redrive.payload import check_text
from redrive.policy import RetryPolicy
from redrive.rate import Rate
from redrive.store.base import Store

PATTERN_LIMIT: Final = 255
RETRY_FIELDS: Final = ("max_attempts", "base_delay", "multiplier", "max_delay", "jitter")
FIELDS: Final = (*RETRY_FIELDS, "timeout", "concurrency", "rate")
NONE: Final = "none"
_MOST_AT_ONCE: Final = 1_000_000
_LONGEST: Final = 36_525 * 86_400.0


@dataclass(frozen=True, slots=True)
class Terms:
    """Under which one target is worked on. Spans in seconds; nothing: no limit."""

    retry: RetryPolicy
    timeout: float | None = None
    concurrency: int | None = None
    rate: Rate | None = None


@dataclass(frozen=True, slots=True)
class Override:
    """What somebody said about the handlers that a pattern matches."""

    pattern: str
    values: Mapping[str, Any]
    set_by: str
    set_at: datetime
    reason: str

    def to_json(self) -> dict[str, Any]:
        """Return a plain dict."""
        return {
            "pattern": self.pattern,
            "values": dict(self.values),
            "set_by": self.set_by,
            "set_at": iso(self.set_at),
            "reason": self.reason,
        }


# --- reading what was said ---


def check_pattern(pattern: str) -> str:
    """Refuse what could not match anything."""
    if not pattern.strip():
        raise ConfigurationError("say for which handlers: a target, a type, a beginning like 'order.*', or '*' for all")
    if "*" in pattern[:-1]:
        raise ConfigurationError(f"{pattern[:80]!r}: a pattern has its * at the end, as in 'order.*'")
    return check_text(pattern, "pattern", PATTERN_LIMIT)


def checked(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values in the form in which they are stored; refuse what no handler could work under."""
    if unknown := sorted(given.keys() - set(FIELDS)):
        raise ConfigurationError(f"a policy has no {unknown[0][:64]!r}: it has {', '.join(FIELDS)}")
    policy = _retry({name: given[name] for name in RETRY_FIELDS if name in given})
    values: dict[str, Any] = {name: getattr(policy, name) for name in RETRY_FIELDS if name in given}
    if "timeout" in given:
        values["timeout"] = None if given["timeout"] == NONE else _span(given["timeout"])
    if "concurrency" in given:
        values["concurrency"] = None if given["concurrency"] == NONE else check_concurrency(given["concurrency"])
    if "rate" in given:
        values["rate"] = None if given["rate"] == NONE else str(Rate.parse(given["rate"]))
    return values


def check_concurrency(value: object) -> int:
    """Refuse a number of attempts at once that cannot work."""
    if type(value) is int and 1 <= value <= _MOST_AT_ONCE:
        return value
    raise ConfigurationError(
        f"concurrency must be a whole number from 1 to {_MOST_AT_ONCE:,}, not {check.shown(value)}; "
        "'none' stands for no limit"
    )


def _retry(given: Mapping[str, Any]) -> RetryPolicy:
    # What is not said must not get in the way: a base delay alone is measured against the longest cap there is.
    others = {} if "max_delay" in given else {"max_delay": _LONGEST}
    return RetryPolicy(**{"base_delay": 0.0, **others, **given})


def _span(value: object) -> float:
    try:
        return span(value, "timeout")
    except BadDuration as error:
        raise ConfigurationError(f"{error}; 'none' stands for no limit") from None


# --- which applies ---


def specificity(pattern: str, types: Sequence[str], target: str) -> tuple[int, int] | None:
    """Rank how closely a pattern describes a handler of these types; None when it does not."""
    if pattern.endswith("*"):
        begins = pattern[:-1]
        return (1, len(begins)) if any(name.startswith(begins) for name in (target, *types)) else None
    if pattern == target:
        return (3, 0)
    return (2, 0) if pattern in types else None


def matching(overrides: Iterable[Override], types: Sequence[str], target: str) -> list[Override]:
    """Return those that apply to a handler, the most specific last."""
    ranked = [(rank, each) for each in overrides if (rank := specificity(each.pattern, types, target)) is not None]
    return [each for _, each in sorted(ranked, key=lambda pair: pair[0])]


def under(terms: Terms, overrides: Iterable[Override]) -> Terms:
    """Say what holds for a handler under the overrides that match it, the most specific last."""
    values: dict[str, Any] = {}
    for each in overrides:
        values.update(each.values)
    return with_values(terms, values)


def with_values(terms: Terms, values: Mapping[str, Any]) -> Terms:
    """Put values in the place of what a handler says. The cap holds for the first wait too."""
    retry, was = terms.retry, terms.retry
    if values.keys() & set(RETRY_FIELDS):
        said = {name: values.get(name, getattr(was, name)) for name in RETRY_FIELDS}
        said["base_delay"] = min(said["base_delay"], said["max_delay"])
        retry = RetryPolicy(**said, terminal_errors=was.terminal_errors, first_power=was.first_power)
    rate = values.get("rate", terms.rate)
    return Terms(
        retry,
        values.get("timeout", terms.timeout),
        values.get("concurrency", terms.concurrency),
        Rate.parse(rate) if isinstance(rate, str) else rate,
    )


# --- in the database ---


async def put(store: Store, pattern: str, given: Mapping[str, Any], *, by: str, reason: str) -> Override:
    """Say something about a pattern; what was said of it before and is not said now stays."""
    name = check_pattern(pattern)
    if not given:
        raise Refused(f"say what to change: one of {', '.join(FIELDS)}")
    checked(given)
    async with store.transaction() as tx:
        await tx.run("policy_changed")  # first: it keeps others away until the end
        before = await tx.run("policy_get", pattern=name)
        was = json.loads(before[0]["values"]) if before else {}
        values = checked({**_as_given(was), **given})
        await tx.run("policy_set", pattern=name, document=json.dumps(values), by=by, reason=reason)
        await tx.note("policy-set", by, {"reason": reason, "pattern": name, "was": was, "is": values})
        (row,) = await tx.run("policy_get", pattern=name)
    return override_from(row)


async def clear(store: Store, pattern: str, *, by: str, reason: str) -> Override:
    """Take back what was said about a pattern; handlers go back to what they say themselves."""
    async with store.transaction() as tx:
        await tx.run("policy_changed")
        before = await tx.run("policy_get", pattern=pattern)
        if not before:
            known = ", ".join(row["pattern"] for row in await tx.run("policies"))
            hint = f"there is one for {known[:500]}" if known else "none is set at all"
            raise Refused(f"nobody has set a policy for {pattern[:80]!r}: {hint}")
        gone = override_from(before[0])
        await tx.run("policy_clear", pattern=pattern)
        await tx.note("policy-cleared", by, {"reason": reason, "pattern": pattern, "was": dict(gone.values)})
    return gone


def _as_given(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: NONE if value is None else value for name, value in values.items()}


async def standing(store: Store) -> list[Override]:
    """Read all of them, by pattern."""
    return [override_from(row) for row in await store.ask("policies")]


async def news(store: Store, seen: int) -> tuple[int, list[Override]] | None:
    """Read all of them if anything has changed since a version; nothing otherwise, which costs one short query."""
    rows = await store.ask("policies_since", seen=seen)
    if not rows:
        return None
    return rows[0]["version"], [override_from(row) for row in rows if row["pattern"] is not None]


def override_from(row: Mapping[str, Any]) -> Override:
    """Read a row of either store."""
    at = row["set_at"]
    values = {name: value for name, value in json.loads(row["values"]).items() if name in FIELDS}
    return Override(row["pattern"], values, row["set_by"], instant_of(at), row["reason"])
