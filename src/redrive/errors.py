"""Errors: everything Redrive raises, and what a handler may raise to say how it failed.

One base, three families: a configuration that cannot work, a step that could not be taken, and a handler
that names its own failure. A message says what to do about it.

Next: ``classify`` turns whatever a handler raised into an error class.
"""

from datetime import datetime
from unicodedata import combining, east_asian_width

__all__ = [
    # the base
    "RedriveError",
    # configuration
    "ConfigurationError",
    "MissingDriver",
    "SchemaMissing",
    "SchemaTooNew",
    "BadDuration",
    # at run time
    "StoreUnavailable",
    "StoreFull",
    "StoreReadOnly",
    "LockHeld",
    "LeaseLost",
    "AlreadyHandled",
    "KeyInUse",
    "StepMisused",
    "StepPending",
    "NotFound",
    "EventNotFound",
    "FindingNotFound",
    "Refused",
    "NeedsApproval",
    "Taken",
    "ReservationLost",
    "BatchNotFound",
    "BatchClosed",
    "SelectionError",
    "PayloadRefused",
    "PayloadInvalid",
    "NotComparable",
    # between us and a broker
    "Unparsable",
    "BrokerRefused",
    "MessageTooLarge",
    "TopicMissing",
    # why an attempt was ended from outside
    "AttemptStopped",
    "TimedOut",
    "DeadlinePassed",
    "Cancelled",
    "ProcessDied",
    # for handlers to raise
    "HandlerError",
    "TerminalHandlerError",
    "DependencyUnavailable",
    "DependencyDegraded",
    "PolicyViolation",
    "PrerequisiteMissing",
    "Rejected",
]


class RedriveError(Exception):
    """Base of every error of this library."""


# --- configuration: refused at start, before any event is touched ---


class ConfigurationError(RedriveError):
    """A setting cannot work; the message names it and what is allowed."""


class MissingDriver(ConfigurationError):
    """A package for this store or transport is not installed."""


class SchemaMissing(ConfigurationError):
    """The database has no Redrive tables yet: run ``redrive migrate``."""


class SchemaTooNew(ConfigurationError):
    """The database was migrated by a newer Redrive than this one."""


class BadDuration(ConfigurationError, ValueError):
    """A span of time that cannot be understood."""


# --- at run time ---


class StoreUnavailable(RedriveError):
    """The database does not answer; nothing is known to have been written."""


class StoreFull(StoreUnavailable):
    """The database has no room left; it can be read, not written."""


class StoreReadOnly(StoreUnavailable):
    """The database refuses writes (a standby, a read-only file)."""


class LockHeld(StoreUnavailable):
    """Another transaction holds a lock that this one needs; nothing was written, and it will be tried again."""


class LeaseLost(RedriveError):
    """Another worker holds this event by now; nothing was written."""


class AlreadyHandled(RedriveError):
    """Control flow: this idempotency key has already had its effect."""


class KeyInUse(RedriveError):
    """Control flow: another transaction is recording this idempotency key. The event waits for its end."""


class StepMisused(ConfigurationError):
    """A step was called in a way that cannot be kept: no further attempt will change that."""


class StepPending(RedriveError):
    """Control flow: a shadow has come to a step that has not been done."""


class NotFound(RedriveError, LookupError):
    """There is nothing of this id or name."""


class EventNotFound(NotFound):
    """No event has this id."""


class FindingNotFound(NotFound):
    """No finding, and no run of a reconciler, has this id."""


class Refused(RedriveError):
    """The event's state does not allow this."""


class NeedsApproval(Refused):
    """A person, or a second one, has to approve this first."""


class Taken(Refused):
    """Somebody else holds this resource: ``owner``, until ``until``."""

    # Defaults, so that the error survives pickling out of a child process.
    def __init__(self, *args: object, resource: str = "", owner: str = "", until: datetime | None = None) -> None:
        super().__init__(*args)
        self.resource = resource
        self.owner = owner
        self.until = until


class ReservationLost(Refused):
    """A token no longer holds its resource: it was taken over, released, or ran out. Nothing was written."""


class BatchNotFound(NotFound):
    """No batch has this id."""


class BatchClosed(Refused):
    """The batch is closed: nothing was added to it."""


class SelectionError(RedriveError, ValueError):
    """A selection cannot be understood; ``position`` counts characters of ``text`` from 0, ``reason`` says why."""

    # Defaults, and all of it in ``args``, so that the error survives pickling out of a child process.
    def __init__(self, reason: str, text: str = "", position: int = 0, length: int = 1) -> None:
        super().__init__(reason, text, position, length)
        self.reason = reason
        self.text = text
        self.position = position
        self.length = length

    def __str__(self) -> str:
        """Say why, and point at the place: a line of the text, and carets below it."""
        if not self.text:
            return self.reason
        first = max(0, self.position - 40)
        shown = self.text[first : first + 76]
        shown = "".join(each if each.isprintable() else "\N{MIDDLE DOT}" for each in shown)
        before = ("… " if first else "") + shown[: self.position - first]
        marked = shown[self.position - first :][: max(1, self.length)]
        after = "" if first + 76 >= len(self.text) else " …"
        line = before + shown[self.position - first :] + after
        return f"{self.reason}\n  {line}\n  {' ' * _columns(before)}{'^' * max(1, _columns(marked))}"


def _columns(text: str) -> int:
    """Count the columns of a terminal: wide characters take two, combining ones none."""
    return sum(0 if combining(each) else 2 if east_asian_width(each) in "WF" else 1 for each in text)


class PayloadRefused(RedriveError, ValueError):
    """A value cannot be stored; ``field`` says where it is, ``limit`` which bound it breaks."""

    # Both have defaults so that the error survives pickling out of a child process.
    def __init__(self, *args: object, field: str = "payload", limit: str | None = None) -> None:
        super().__init__(*args)
        self.field = field
        self.limit = limit


class PayloadInvalid(RedriveError, ValueError):
    """A stored payload does not fit the type its handler asks for."""


class NotComparable(RedriveError, ValueError):
    """A side of a reconciler has a key twice, or something that cannot be compared; nothing was changed."""


# --- why an attempt was ended from outside ---


class AttemptStopped(RedriveError):
    """The attempt shall end; raised by ``ctx.check_cancelled()``. Let it through."""


class TimedOut(AttemptStopped, TimeoutError):
    """The attempt took longer than the handler's ``timeout``."""


class DeadlinePassed(TimedOut):
    """The event's deadline has passed: there is no further attempt."""

    # Said by whoever knows more than the rules do; classify looks for it.
    safe_to_retry: bool | None = None


class Cancelled(AttemptStopped):
    """Somebody called the event off while it was being handled."""


class ProcessDied(RedriveError):
    """The child process of a handler with ``isolation="process"`` died."""


# --- for handlers to raise ---


class HandlerError(RedriveError):
    """A handler failed in a way it can name; ``safe_to_retry`` overrides what its class implies."""

    def __init__(self, *args: object, safe_to_retry: bool | None = None) -> None:
        super().__init__(*args)
        self.safe_to_retry = safe_to_retry


class TerminalHandlerError(HandlerError):
    """No further attempt can help: the event becomes a dead letter at once."""


class _DependencyError(HandlerError):
    def __init__(self, dependency: str, message: str = "", *, safe_to_retry: bool | None = None) -> None:
        super().__init__(dependency, message, safe_to_retry=safe_to_retry)
        self.dependency = dependency
        self.message = message

    def __str__(self) -> str:
        return f"{self.dependency}: {self.message}" if self.message else self.dependency


class DependencyUnavailable(_DependencyError):
    """Something outside is down, and may be back soon."""


class DependencyDegraded(_DependencyError):
    """Something outside works only in a reduced mode, and that was not enough here."""


class PolicyViolation(TerminalHandlerError):
    """The event breaks a rule that another attempt will not change."""


class PrerequisiteMissing(HandlerError):
    """Something this event needs is not there yet."""


class Rejected(TerminalHandlerError):
    """The domain said no, for good."""


# --- between us and a broker ---


class Unparsable(PayloadInvalid):
    """A message that came cannot be read; the message says why. It is kept raw, and read again when replayed.

    ``at`` points at the place in the document (RFC 6901), as far as that is known.
    """

    def __init__(self, message: str, *, at: str = "") -> None:
        super().__init__(message)
        self.at = at


class BrokerRefused(TerminalHandlerError):
    """The broker has answered that it will not take this message; a replay may find it of another mind."""


class MessageTooLarge(BrokerRefused):
    """The message is larger than the broker takes."""


class TopicMissing(BrokerRefused):
    """Nothing at the broker takes messages of this name."""
