"""Words: how the console says numbers, times and states. What is printed is escaped, and shows control characters."""

import json
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, Final

from jinja2 import pass_context
from jinja2.runtime import Context
from markupsafe import Markup

from redrive.duration import format_duration
from redrive.event import THROTTLE
from redrive.operate.cli import text

CLASSES: Final[Mapping[str, tuple[str, str]]] = {
    "dependency_unavailable": ("outage", "Something outside did not answer."),
    "dependency_degraded": ("degraded", "Something outside answered in a reduced way."),
    "invalid": ("data", "The payload does not fit."),
    "missing": ("prerequisite", "Something that it needs is not there."),
    "rejected": ("policy", "Somebody said no, and will again."),
    "broken": ("poison", "The handler itself fails on it."),
    "timed_out": ("too slow", "It took longer than it may."),
    "worker_lost": ("killer", "Its worker died while it ran."),
}
"""A badge for each error class, and what it means."""

STATUSES: Final[Mapping[str, str]] = {
    "pending": "pending", "in_flight": "in flight", "delivered": "delivered", "failed": "dead letter",
    "blocked": "blocked", "cancelled": "cancelled",
}  # fmt: skip

TONES: Final[Mapping[str, str]] = {
    # events
    "pending": "quiet", "in_flight": "busy", "delivered": "good", "failed": "bad", "blocked": "wait",
    "cancelled": "quiet", "discarded": "quiet",
    # groups
    "new": "bad", "ongoing": "wait", "resolved": "good", "regressed": "bad",
    # redrives
    "planning": "quiet", "planned": "busy", "running": "busy", "paused": "wait", "halted": "bad", "done": "good",
    "aborted": "quiet",
    # members of a redrive
    "ready": "quiet", "ineligible": "quiet", "released": "busy", "failed_same": "bad", "failed_other": "wait",
    "skipped": "quiet",
    # circuits
    "closed": "good", "open": "bad", "half_open": "wait", "degraded": "wait",
    # checks
    "ok": "good", "warning": "wait", "problem": "bad",
    # workers
    "live": "good", "stopping": "wait", "gone": "bad", "left": "quiet",
    # matters, batches, groups of batches, findings, tasks
    "now": "bad", "soon": "wait", "know": "quiet", "added to": "busy", "tried": "wait", "forced": "wait",
    "complete": "good", "under way": "busy", "partly": "wait", "healed": "good", "ignored": "quiet",
    "needs a person": "bad", "waiting": "wait", "sent": "wait", "unknown": "quiet",
    # transports and reservations
    "idle": "quiet", "connecting": "wait", "unreachable": "bad", "refused": "bad", "not running": "wait",
    "held": "busy",
}  # fmt: skip
"""The colour of a state. It is always beside its word."""

_LONGEST_ID: Final = 20


def instant(value: datetime | str | None) -> datetime | None:
    """Read an instant of a view, which may have been written for JSON."""
    if value is None or isinstance(value, datetime):
        return value
    return datetime.fromisoformat(value)


def absolute(at: datetime) -> str:
    """Say an instant in full, in UTC."""
    return at.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


@pass_context
def ago(context: Context, value: datetime | str | None, empty: str = "") -> str:
    """Say an instant as seen from now; the whole of it is in the title."""
    at = instant(value)
    if at is None:
        return empty
    words = text.when(at, context["now"])
    return Markup('<time datetime="{}" title="{}">{}</time>').format(
        at.astimezone(UTC).isoformat(timespec="milliseconds"), absolute(at), words
    )


def moment(value: datetime | str | None) -> str:
    """Say the time of day, with the whole in the title."""
    at = instant(value)
    if at is None:
        return ""
    return Markup('<time datetime="{}" title="{}" data-fixed>{}</time>').format(
        at.astimezone(UTC).isoformat(timespec="milliseconds"), absolute(at), text.clock_time(at)[:8]
    )


def count(value: int | None) -> str:
    """Write a count; most of them stop at 10,000."""
    return "" if value is None else text.number(value)


def exact(value: int) -> str:
    """Write a number in full."""
    return f"{value:,}"


def brief(value: float) -> str:
    """Write a number in three or four characters: ``950``, ``1.2k``, ``35k``, ``1.4M``."""
    for least, unit in ((1e6, "M"), (1e3, "k")):
        if value >= least:
            scaled = value / least
            return f"{scaled:.1f}".removesuffix(".0") + unit if scaled < 10 else f"{scaled:.0f}{unit}"  # noqa: PLR2004
    return f"{value:.0f}" if value == int(value) or value >= 10 else f"{value:.1f}"  # noqa: PLR2004


def span(seconds: float | None) -> str:
    """Say a span."""
    return "" if seconds is None else format_duration(round(seconds) if seconds >= 1 else seconds)


def short(value: object) -> str:
    """Shorten an id to its two ends: those made in one moment begin alike."""
    said = str(value)
    return said if len(said) <= _LONGEST_ID else f"{said[:8]}…{said[-6:]}"


def line(value: str | None, limit: int = 160) -> str:
    """Bring a text onto one line."""
    return text.one_line(value or "", limit)


def tone(state: str) -> str:
    """Name the colour of a state."""
    return TONES.get(state, "quiet")


def status(value: str) -> str:
    """Say a status."""
    return STATUSES.get(value, value.replace("_", " "))


def badge(error_class: str | None) -> str:
    """Say what kind of trouble it is, in a word."""
    return CLASSES.get(error_class or "", ((error_class or "unknown").replace("_", " "), ""))[0]


def meaning(error_class: str | None) -> str:
    """Say what that word means."""
    return CLASSES.get(error_class or "", ("", ""))[1]


def percent(share: float) -> str:
    """Say a share."""
    return f"{share:.0%}"


def waits_for(blocked_on: str | None) -> str:
    """Say what a blocked event waits for."""
    if blocked_on is None:
        return "an earlier event of its key"
    return "the limit of its handler" if blocked_on.startswith(THROTTLE) else blocked_on


def plural(number: int, noun: str) -> str:
    """Say how many."""
    many = f"{noun[:-1]}ies" if noun.endswith("y") and noun[-2] not in "aeiou" else f"{noun}s"
    return f"{text.number(number)} {noun if number == 1 else many}"


def written(value: Any) -> str:
    """Write a value as JSON."""
    return json.dumps(value, ensure_ascii=False)


def printed(value: Any) -> Any:
    """Show control characters of whatever is printed, and nothing where there is nothing."""
    if value is None:
        return ""
    return text.clean(value) if type(value) is str else value


FILTERS: Final[Mapping[str, Callable[..., Any]]] = {
    "ago": ago, "moment": moment, "count": count, "exact": exact, "brief": brief, "span": span, "short": short,
    "line": line, "tone": tone, "status": status, "badge": badge, "meaning": meaning, "percent": percent,
    "waits_for": waits_for, "plural": plural, "json": written,
}  # fmt: skip
