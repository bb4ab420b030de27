"""Redrive: what happens after a failure.

Events are carried to their handlers until each is delivered, or stands visibly in quarantine with its whole history,
from where it can be sent round again, safely.
"""

from redrive.app import Redrive
from redrive.attention import Matter, Urgency
from redrive.batch import Batch, Batches, BatchGroup, BatchLook, BatchReport, Failure
from redrive.classify import Rule
from redrive.context import Context
from redrive.deliver import DeadLetter, Retry
from redrive.dependency import Dependency
from redrive.duration import parse_duration
from redrive.errors import (
    AlreadyHandled,
    AttemptStopped,
    BatchClosed,
    BatchNotFound,
    ConfigurationError,
    DependencyDegraded,
    DependencyUnavailable,
    EventNotFound,
    HandlerError,
    KeyInUse,
    LeaseLost,
    NeedsApproval,
    NotComparable,
    PayloadInvalid,
    PayloadRefused,
    PolicyViolation,
    PrerequisiteMissing,
    RedriveError,
    Refused,
    Rejected,
    ReservationLost,
    StepMisused,
    StoreUnavailable,
    Taken,
    TerminalHandlerError,
)
from redrive.event import ErrorClass, Event, FailureCycle, Priority, Published, Status, TrailEntry
from redrive.finding import Finding, ReconcileRun
from redrive.gather import Gather
from redrive.group import Group
from redrive.inbox import Settling, Work
from redrive.lock import Lock, Locks
from redrive.ordering import HeldKey
from redrive.override import Override
from redrive.payload import Limits
from redrive.policy import RetryPolicy
from redrive.reconcile import Reconcilers
from redrive.redrive import Plan, Redriving, Release
from redrive.reserve import Reservation, Reservations
from redrive.retention import Retention
from redrive.schedule import Schedule, Schedules
from redrive.steps import Step, StepRecord
from redrive.store.base import EventFilter
from redrive.worker import Worker

__version__ = "0.1.0"

__all__ = [
    # the app
    "Redrive",
    "Limits",
    "Retention",
    "parse_duration",
    # going in
    "Published",
    "Priority",
    "Gather",
    # being handled
    "Worker",
    "Context",
    "Step",
    "Work",
    # saying how it failed
    "HandlerError",
    "TerminalHandlerError",
    "DependencyUnavailable",
    "DependencyDegraded",
    "PolicyViolation",
    "PrerequisiteMissing",
    "Rejected",
    "Rule",
    "ErrorClass",
    # after a failure
    "RetryPolicy",
    "Override",
    "Retry",
    "DeadLetter",
    "Settling",
    "FailureCycle",
    # redrives
    "Plan",
    "Release",
    "Redriving",
    "Group",
    "HeldKey",
    "Dependency",
    # one winner, and by the clock
    "Reservations",
    "Reservation",
    "Locks",
    "Lock",
    "Schedules",
    "Schedule",
    # what should be, and what is
    "Reconcilers",
    "ReconcileRun",
    "Finding",
    # batches
    "Batches",
    "Batch",
    "BatchLook",
    "BatchGroup",
    "BatchReport",
    "Failure",
    # looking
    "Matter",
    "Urgency",
    "Event",
    "EventFilter",
    "Status",
    "StepRecord",
    "TrailEntry",
    # errors
    "RedriveError",
    "ConfigurationError",
    "StoreUnavailable",
    "LeaseLost",
    "AttemptStopped",
    "AlreadyHandled",
    "KeyInUse",
    "StepMisused",
    "EventNotFound",
    "Refused",
    "NeedsApproval",
    "Taken",
    "ReservationLost",
    "BatchNotFound",
    "BatchClosed",
    "PayloadRefused",
    "PayloadInvalid",
    "NotComparable",
]
