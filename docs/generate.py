"""Write the pages of docs/reference that follow from the code: run it after a change to what it reads.

    python docs/generate.py            write
    python docs/generate.py --check    say what is out of date, and end with 1

`tests/docs/test_docs.py` runs the check. A column or an option without a sentence here is an error.
"""
# ruff: noqa: INP001 - a script, not a package

import ast
import inspect
import re
import sys
import textwrap
from dataclasses import is_dataclass
from enum import Enum
from pathlib import Path
from typing import Any

import redrive
from redrive import errors, testing
from redrive.event import Event, Status
from redrive.operate.alerts import rules
from redrive.operate.auth import ALLOWED, MEANING, Role
from redrive.operate.metrics import COUNTED, KNOWN
from redrive.operate.web import api, problems, redrive_asgi
from redrive.operations import Operations
from redrive.publish import Options
from redrive.registry import Registry
from redrive.store.sql import migrations

_LINE = 100  # what fits on a line of a code block
FOLDER = Path(__file__).parent / "reference"
HEAD = "<!-- Written by docs/generate.py; change the code it reads, then run it. -->\n"

COLUMNS = {
    "failure_group.fingerprint": "version and hash of the cause",
    "failure_group.target": "whose handler failed",
    "failure_group.type": "of its events",
    "failure_group.error_class": "of the failure",
    "failure_group.error_type": "of the exception",
    "failure_group.title": "first line of the latest error",
    "failure_group.state": "new, ongoing, resolved or regressed",
    "failure_group.dead_count": "dead letters it has now",
    "failure_group.total_count": "dead letters it ever had",
    "failure_group.first_seen_at": "first dead letter",
    "failure_group.last_seen_at": "latest dead letter",
    "failure_group.first_generation": "in which it began",
    "failure_group.last_generation": "in which it was last seen",
    "failure_group.sample_event_id": "the latest dead letter",
    "failure_group.owner": "who looks after it",
    "failure_group.note": "what is known of it",
    "failure_group.muted_until": "quiet until then",
    "failure_group.resolved_at": "when it was resolved",
    "failure_group.resolved_by": "by whom",
    "redrive.id": "time-ordered (UUIDv7)",
    "redrive.state": "planning, planned, running, paused, halted, done or aborted",
    "redrive.selection": "what was asked for, as text",
    "redrive.sentence": "the same in English",
    "redrive.digest": "of the frozen members; a start must show it",
    "redrive.total": "members",
    "redrive.ready": "members that may go",
    "redrive.planned_by": "who planned it",
    "redrive.planned_at": "when",
    "redrive.expires_at": "a plan cannot be started after this",
    "redrive.approved_by": "the second person",
    "redrive.approved_at": "when",
    "redrive.started_by": "who started it",
    "redrive.started_at": "when",
    "redrive.reason": "why",
    "redrive.generation": "given to the members, if said",
    "redrive.from_start": "whether finished steps are forgotten",
    "redrive.edited": "whether it is one replay with an edited payload, which a second person approves",
    "redrive.rate": "members a second, if limited",
    "redrive.max_in_flight": "members under way at once",
    "redrive.ramp": "sizes of the first stages",
    "redrive.halt_at": "share of failures at which it halts",
    "redrive.gated": "whether it halts at all",
    "redrive.lined_up": "whether its members with ordering keys know their place in line",
    "redrive.judged_delivered": "members delivered before the outcomes that are judged now",
    "redrive.judged_same": "members that had failed with the same fingerprint by then",
    "redrive.judged_other": "members that had failed otherwise by then",
    "redrive.stage": "of the ramp, from 0; as many as it has stages: the ramp is over",
    "redrive.metered_from": "since when the rate counts",
    "redrive.metered_count": "released by then",
    "redrive.released": "members let go",
    "redrive.delivered": "members delivered",
    "redrive.failed_same": "members that failed with the same fingerprint",
    "redrive.failed_other": "members that failed otherwise",
    "redrive.skipped": "members that were no longer what was planned",
    "redrive.stopped_by": "who paused, halted or aborted it",
    "redrive.stop_reason": "why",
    "redrive.stopped_at": "when",
    "redrive.ended_at": "when it was over",
    "redrive_group.fingerprint": "of the group",
    "redrive_group.redrive_id": "which had some of its dead letters",
    "redrive_group.members": "how many, when planned",
    "redrive_item.redrive_id": "of which redrive",
    "redrive_item.position": "number of the member, in the order of the ids",
    "redrive_item.event_id": "the dead letter",
    "redrive_item.cycle": "of the event when planned",
    "redrive_item.fingerprint": "of the failure when planned",
    "redrive_item.failed_at": "when it had become a dead letter",
    "redrive_item.follows": "the member before it in the line of its ordering key",
    "redrive_item.line": "target and ordering key, for members that have one",
    "redrive_item.place": "where it stands in that line: `created_at` on PostgreSQL, `seq` on SQLite",
    "redrive_item.waits": "whether an earlier member of its line has not ended",
    "redrive_item.state": "ready, ineligible, released, delivered, failed_same, failed_other or skipped",
    "redrive_item.reason": "why it may not go, or did not",
    "redrive_item.stage": "of the ramp, in which it was released; null after the ramp or without one",
    "redrive_item.released_at": "when",
    "redrive_item.ended_at": "when its outcome was known",
    "redrive_item.payload": "the edited payload while it waits for approval",
    "step.event_id": "of which event",
    "step.cycle": "in which it was first begun",
    "step.name": "how later attempts recognise it",
    "step.position": "in the order in which they were begun",
    "step.state": "started (its end is not known), done, compensating, compensated or skipped",
    "step.key": "the same for every run of the step; a replay from the start has another",
    "step.result": "what its function returned",
    "step.compensation": "the target that undoes it",
    "step.compensation_id": "the event that undoes it, once there is something to undo",
    "step.compensate_on": "at which ends of the event",
    "step.fence": "of the claim that wrote it",
    "step.started_at": "when its function was called",
    "step.ended_at": "when its result was kept",
    "dependency.name": "what `blocked_on` says: `carrier-api`, `brake:order.paid`, `hold:order.*`, `queue:mail`",
    "dependency.kind": "dependency, brake or hold",
    "dependency.state": "closed, open, half_open or degraded",
    "dependency.by_hand": "a person has opened it; only a person closes it",
    "dependency.failed_count": "failures in a row; for a brake those of the last minute",
    "dependency.passed_count": "for a brake: deliveries of the last minute",
    "dependency.counted_at": "the last failure; for a brake when its minute began",
    "dependency.opened_at": "since when it is shut, or was last",
    "dependency.opened_by": "the worker or the person",
    "dependency.reason": "why",
    "dependency.openings": "how often it was opened without having been closed for good: the wait grows with it",
    "dependency.probe_at": "when it is tried next",
    "dependency.probe_event_id": "the event it was last tried with",
    "dependency.probe_until": "somebody is trying it, until then at the latest",
    "dependency.closed_at": "when it was last closed",
    "dependency.released_from": "since when those who wait are coming back",
    "dependency.released_count": "how many have come back since",
    "policy_override.pattern": "which handlers: a target, a type, `order.*`, `*`",
    "policy_override.values": "what is said of them; spans in seconds, null for no limit",
    "policy_override.set_by": "who",
    "policy_override.set_at": "when it was last changed",
    "policy_override.reason": "why",
    "policy_version.id": "always 1",
    "policy_version.version": "grows with every change",
    "throttle.target": "of which handler",
    "throttle.free_at": "until when the permits of its rate are given away",
    "throttle_use.target": "of which handler",
    "throttle_use.session_id": "the worker",
    "throttle_use.used": "how many it runs; those of a session that has ended do not count",
    "reservation.resource": "what is held: `seat/12A`, `lock:nightly-import`",
    "reservation.token": "grows with every take, and is never reset",
    "reservation.owner": "who holds it, or held it last",
    "reservation.facts": "what the owner wants others to know",
    "reservation.taken_at": "when it was taken",
    "reservation.renewed_at": "when it was last renewed",
    "reservation.until": "it runs out then",
    "reservation.released_at": "when it was given back, or taken away",
    "schedule.name": "how others recognise it",
    "schedule.type": "of the events it publishes",
    "schedule.payload": "of the events it publishes",
    "schedule.options": "of `publish`, with source, generation and targets as the app knew them that wrote it",
    "schedule.cron": "five fields, or none",
    "schedule.every_seconds": "the span instead, or none",
    "schedule.offset_seconds": "shifts the ticks of a span",
    "schedule.time_zone": "by whose wall clock a cron line ticks",
    "schedule.catch_up": "what becomes of missed ticks: latest, all or skip",
    "schedule.next_at": "the next tick; who moves it on publishes its event",
    "schedule.last_at": "the tick of its latest event",
    "schedule.event_count": "ticks that had an event",
    "schedule.missed_count": "ticks that passed while no worker was there, without an event of their own",
    "schedule.paused_at": "since when it does not tick",
    "schedule.paused_by": "who paused it",
    "schedule.digest": "of the definition: workers compare it with their own when they begin",
    "schedule.created_at": "when it was first written",
    "schedule.changed_at": "when its definition was last changed",
    "schedule.changed_by": "by which worker or person",
    "reconciler.name": "as it was added; the engine's own begin with `redrive:`",
    "reconciler.looked_at": "when it was last at work",
    "reconciler.looked_by": "who",
    "reconcile_run.id": "that of its event, if it has one",
    "reconcile_run.name": "of which reconciler",
    "reconcile_run.event_id": "the event that asked for it; none for a run in the caller's process",
    "reconcile_run.started_by": "who asked",
    "reconcile_run.dry_run": "nothing but this row was written",
    "reconcile_run.state": "running, done or failed",
    "reconcile_run.started_at": "when its latest attempt began",
    "reconcile_run.ended_at": "when it ended",
    "reconcile_run.compared": "keys of both sides",
    "reconcile_run.missing": "keys that only `desired` had",
    "reconcile_run.extra": "keys that only `actual` had",
    "reconcile_run.different": "keys with two values",
    "reconcile_run.published": "events it made",
    "reconcile_run.coalesced": "differences that had an event or a dead letter",
    "reconcile_run.healed": "findings it no longer saw",
    "reconcile_run.sample": "its first hundred differences",
    "reconcile_run.error": "why it failed",
    "finding.id": "time-ordered (UUIDv7)",
    "finding.name": "of which reconciler",
    "finding.key": "what differs",
    "finding.kind": "missing, extra or different",
    "finding.desired": "what should be, as it was last seen",
    "finding.actual": "what is, as it was last seen",
    "finding.state": "open, healed or ignored",
    "finding.first_seen_at": "by the first run",
    "finding.last_seen_at": "by the latest run",
    "finding.seen_count": "how many runs have seen it",
    "finding.returned_count": "how often it came back after it was healed",
    "finding.run_id": "the latest run that saw it",
    "finding.event_id": "the event that converges it",
    "finding.converged_at": "when `converge` last returned",
    "finding.healed_at": "when a run no longer saw it",
    "finding.note": "why it is ignored",
    "finding.noted_by": "who said so",
    "batch.id": "time-ordered (UUIDv7)",
    "batch.name": "what people call it; the subject of its notices",
    "batch.source": "who opened it",
    "batch.correlation_id": "of its notices, and of members that say nothing else; its id without one",
    "batch.deadline_at": "when the notices are sent, whatever is left",
    "batch.leftovers": "what becomes of members that are live at the deadline: leave or fail",
    "batch.opened_at": "when",
    "batch.closed_at": "since when nothing can be added",
    "batch.closed_by": "the person, or the worker that found the deadline passed; empty when a program did it",
    "batch.first_at": "when the first notice was sent",
    "batch.final_at": "when the final notice was sent",
    "batch.forced": "whether the final notice did not wait for all members",
    "batch.first_report": "what the first notice said",
    "batch.final_report": "what the final notice said",
    "batch_notice.id": "of the event that will be published",
    "batch_notice.batch_id": "about which batch",
    "batch_notice.kind": "first or final",
    "batch_notice.type": "of the event",
    "batch_notice.target": "of the event",
    "batch_notice.queue": "of the event",
    "batch_notice.priority": "of the event",
    "batch_notice.generation": "of the event",
    "intake_seen.source": "where the message says it comes from",
    "intake_seen.message_id": "its id there; with the source it is known once",
    "intake_seen.event_id": "the event it became, the first one if it became several",
    "intake_seen.seen_at": "when it was stored",
    "intake_seen.position": "where it stood: another message with its id is no repetition of it",
    "intake_lease.name": "of which intake",
    "intake_lease.holder": "the process that subscribes",
    "intake_lease.until": "another may take over after this",
    "intake_beginning.name": "of which broker, topic and group: `kafka:orders/billing`",
    "intake_beginning.topic_id": "tells the topic from a later one of the same name",
    "intake_beginning.positions": "JSON: the first offset by partition; others begin with their first message",
    "intake_beginning.begun_at": "when the group first subscribed",
    "transport_state.name": "the target of a route or an intake",
    "transport_state.worker": "who says so",
    "transport_state.kind": "relay or intake",
    "transport_state.broker": "the name of the dependency",
    "transport_state.destination": "where it sends to, or takes from",
    "transport_state.state": "idle, connecting, ok, unreachable, refused or paused",
    "transport_state.since": "since when",
    "transport_state.error": "why it is not ok",
    "transport_state.ok_at": "when something last moved",
    "transport_state.moved_count": "messages sent or taken since the worker began",
    "transport_state.lag": "for an intake: what waits at the broker, if it knows",
    "transport_state.written_at": "confirmed twice a minute; older than two minutes: that worker is gone",
    "payload_revision.event_id": "of which event",
    "payload_revision.revision": "from 1",
    "payload_revision.payload": "as it was",
    "payload_revision.replaced_by": "who edited it",
    "payload_revision.reason": "why",
    "payload_revision.replaced_at": "when",
    "setting.name": "`approval_above`: above it a redrive needs a second person; `agents_above`: above it one "
    "that an agent starts needs a person; `notices_told`: what people know",
    "setting.value": "as JSON; null is off",
    "setting.set_by": "who set it",
    "setting.set_at": "when",
    "outbox.seq": "the row's place in the file (SQLite only; never shown)",
    "outbox.id": "UUIDv7: ids sort by the time of the publish",
    "outbox.type": "what happened: `order.paid`",
    "outbox.source": "who published it; free text, `sql-direct` when it came through `redrive.publish`",
    "outbox.target": "which handler this row is for; a type's first handler has the type as its target",
    "outbox.subject": "on which resource: `order/7`",
    "outbox.headers": "strings by name, passed on untouched",
    "outbox.idempotency_key": "names the effect; all rows of one publish share it",
    "outbox.retry_key": "at most one live event of a target has it; a second publish returns that one",
    "outbox.correlation_id": "the conversation this event belongs to",
    "outbox.causation_id": "the event that caused this one",
    "outbox.ordering_key": "of one target with one key, one event at a time is under way, in order",
    "outbox.batch_id": "the batch it is a member of",
    "outbox.batch_group": "the group within that batch",
    "outbox.queue": "which workers take it",
    "outbox.priority": "0 high, 1 normal, 2 low, 3 redriven; lower is claimed first",
    "outbox.status": "see [states](states.md)",
    "outbox.due_at": "not claimed before this; a retry is a later `due_at`",
    "outbox.attempts": "attempts of this cycle, counted at the claim",
    "outbox.lost_count": "how often a worker was lost while it held this event; not attempts",
    "outbox.deferred_count": "how often it failed for a dependency without spending an attempt",
    "outbox.max_attempts": "what the policy allowed when an attempt last failed",
    "outbox.fence": "number of the last claim; grows, and is never reset, not even by a replay",
    "outbox.session_id": "the worker that holds it, or held it last; of a cancelled event, until that worker was told",
    "outbox.lease_until": "set when an attempt overran its timeout and blocks its worker: others may take it",
    "outbox.deadline_at": "when the publisher wants it ended by; a replay has none",
    "outbox.generation": "only workers of this generation take it; 0: whoever comes",
    "outbox.cycle": "how often it was replayed",
    "outbox.blocked_on": "what it waits for while it is blocked: a dependency, a brake, a hold, or its limit "
    "(`throttle:…`); none: an earlier event of its ordering key",
    "outbox.passed": "a dead letter that does not hold up its ordering key",
    "outbox.degraded": "an attempt of this cycle was made while a dependency was degraded",
    "outbox.first_failed_at": "first failure of this cycle",
    "outbox.last_error": "what was raised, with the frames of your code; at most 8 KiB",
    "outbox.error_class": "see [classify errors](../how-to/classify-errors.md)",
    "outbox.error_type": "the exception's class, by its dotted name",
    "outbox.safe_to_retry": "whether a further attempt can do harm",
    "outbox.fingerprint": "the same for the same cause",
    "outbox.failure_history": "earlier cycles, the newest 20; see `FailureCycle` in [Python API](python-api.md)",
    "outbox.cancelled_by": "who called it off",
    "outbox.cancel_reason": "and why",
    "outbox.compensation": "of its steps: pending, done or failed; empty when nothing is undone",
    "outbox.steps_from": "steps of earlier cycles are forgotten",
    "outbox.created_at": "when it was published",
    "outbox.ended_at": "when it was delivered, failed or was cancelled",
    "outbox.deleted_at": "when it was discarded; a discarded dead letter can be restored",
    "outbox.payload": "JSON, as published",
    "event_handled.target": "which handler had the effect",
    "event_handled.idempotency_key": "of the event whose effect was committed",
    "event_handled.event_id": "the event that had it",
    "event_handled.handled_at": "when",
    "session.id": "UUIDv7 of this run of the worker; also the name of its chain in the trail",
    "session.name": "the worker's name, `host:pid` unless it was given one",
    "session.host": "where it runs",
    "session.pid": "its process there",
    "session.process": "the process: its machine, number and beginning, for workers that can see whether it is gone",
    "session.queues": "what it takes",
    "session.targets": "what it can handle",
    "session.concurrency": "how many handlers at once",
    "session.generation": "its release",
    "session.started_at": "begin",
    "session.seen_at": "last heartbeat",
    "session.lease_until": "the lease of everything it holds: after this others may take its events",
    "session.ended_at": "when it left, or was declared gone",
    "trail.chain": "the writer: a worker's session id, or `operator`",
    "trail.seq": "1, 2, 3 … without gaps in each chain",
    "trail.at": "when",
    "trail.event_id": "of which event; empty for what concerns several",
    "trail.kind": "see [the trail](../explanation/the-trail.md)",
    "trail.source": "the event's source",
    "trail.actor": "who did it",
    "trail.detail": "JSON, as text: exactly these characters are hashed",
    "trail.hash": "SHA-256 over the entry and the hash before it",
    "operator_token.id": "time-ordered (UUIDv7)",
    "operator_token.name": "whose it is; the actor on the trail",
    "operator_token.role": "viewer, publisher, operator, admin or agent",
    "operator_token.hash": "SHA-256 of the token, which was shown once",
    "operator_token.created_at": "when",
    "operator_token.created_by": "by whom",
    "operator_token.expires_at": "it opens nothing after this",
    "operator_token.last_used_at": "about when; written once an hour at most",
    "operator_token.revoked_at": "it opens nothing since",
    "operator_token.revoked_by": "by whom",
    "sign_in.hash": "SHA-256 of the cookie",
    "sign_in.token_id": "the token that was shown",
    "sign_in.began_at": "when",
    "sign_in.expires_at": "the cookie opens nothing after this",
    "answer.caller": "whose key it is",
    "answer.key": "the `Idempotency-Key`",
    "answer.request": "SHA-256 of method, path and body",
    "answer.status": "what was answered; empty while the call is under way",
    "answer.headers": "those that are told again, as JSON",
    "answer.body": "what was answered",
    "answer.begun_at": "when the call came",
    "answer.expires_at": "the key is free again after this",
    "clock.one": "always 1: there is one row",
    "clock.highest": "the latest time any process has written into this file (SQLite only)",
    "clock_leap.until": "where the clock went (SQLite only)",
    "clock_leap.since": "the time before it (SQLite only)",
    "schema_version.version": "number of the migration",
    "schema_version.name": "its name",
    "schema_version.applied_at": "when it ran",
    "schema_version.needs": "the migration that code must know to work on this schema",
}

OPTIONS = {
    "id": "the event's id, a UUID of `app.clock.new_id()`; a new one by default. It can be used once",
    "subject": "the resource it is about: `order/7`",
    "source": "who publishes; the app's `source` unless said",
    "idempotency_key": "names the effect; the event's id unless said",
    "retry_key": "while an event with this key is live, publishing again returns it",
    "correlation_id": "the conversation; a follow-up published through `ctx` takes it over",
    "causation_id": "the event that caused this one",
    "headers": "at most 100, 16 KiB in all",
    "queue": "which workers take it; `default` unless said",
    "priority": "claimed before those of a higher number",
    "delay": "not before this span has passed: `5m`",
    "due_at": "not before this instant; with its time zone",
    "deadline": "ended after this, as a dead letter: an instant with its time zone, or a span from now on: `1h`",
    "generation": "only workers of this generation take it; the app's unless said",
    "ordering_key": "events with it go one at a time, in order; see [keep events in order](../how-to/keep-in-order.md)",
    "batch": "the batch it is a member of, or its id; see [a file import](../tutorial/file-import.md)",
    "batch_group": "the group within that batch",
}

TABLES = {
    "outbox": "One row is one event for one target. The dead letters are `status = 'failed' and deleted_at is null`.",
    "event_handled": "Effects that were committed. A duplicate or a replay finds its key here and does nothing.",
    "session": "One row a worker process.",
    "trail": "What happened; the database refuses to change or delete a row.",
    "failure_group": "Dead letters with one cause, counted in the transaction that makes or moves one.",
    "redrive": "Many replays as one operation: plan, start, release, outcome. A single replay is a redrive of one.",
    "redrive_group": "How many dead letters of a group a redrive has: the past redrives of a group.",
    "redrive_item": "One member of a redrive, frozen when it was planned, with its own outcome.",
    "step": "What an event has done, and what undoes it. Those of a cycle before `outbox.steps_from` are forgotten.",
    "dependency": "What events may wait for: dependencies outside, brakes of our own, holds of people.",
    "policy_override": "What operators have said about policies while it runs; each change is on the trail.",
    "policy_version": "One row, raised with every change: workers ask whether there is anything to read.",
    "throttle": "One row a target whose attempts are limited over all workers.",
    "throttle_use": "How many attempts of a limited target a worker runs now.",
    "reservation": "One row a resource that was ever taken; kept for its token.",
    "schedule": "One row a schedule: what it publishes, how often, and when next.",
    "batch": "Events that belong together, and what was said of them. Members are counted when somebody asks.",
    "batch_notice": "The events that the notices of a batch will be; made when it is opened.",
    "payload_revision": "What a payload was before somebody edited it for a replay.",
    "reconciler": "One row a reconciler: when it was last at work.",
    "reconcile_run": "One comparison of what should be with what is.",
    "finding": "A key that differed, since when, and what was done about it.",
    "setting": "What holds for everybody who works on this database, whatever their app says.",
    "operator_token": "Who may come in over HTTP. The tokens themselves are not kept.",
    "sign_in": "Browsers that have shown a token.",
    "answer": "What calls with an idempotency key were answered, for a day.",
    "clock": "The highest time this file has seen, so that a clock set back runs nothing early.",
    "clock_leap": "When the clock went forward while nobody saw time pass; retention doubts such time at first.",
    "schema_version": "Which migrations have run.",
    "intake_seen": "Messages that were stored. One that comes again finds its source and id here and makes no event.",
    "intake_lease": "Which process takes from an inlet that only one may take from.",
    "intake_beginning": "Where consumer groups began that start with the latest message; a broker forgets it in time.",
    "transport_state": "How it stands between workers and brokers, a row for each route or intake of each worker.",
}

_INTRODUCTION = """\
On PostgreSQL everything is in the schema `redrive` (`redrive.outbox`); on SQLite the names begin with `redrive_`
(`redrive_outbox`). The columns are the same. Instants are `timestamptz` on PostgreSQL and whole microseconds since
1970 (UTC) on SQLite. `redrive migrate --sql` prints the statements themselves.

You may read all of it. Write through `publish`, `outbox_replay`, `cancel`, `cancel_all` and `batch_close`, or
through the Python API and the command line: they leave the trail that a bare `update` does not.
"""

_TABLE = re.compile(r"create table (?:redrive[._])(\w+) \((.*?)\n\)", re.DOTALL)
_ADDED = re.compile(r"alter table (?:redrive[._])(\w+)\s+add column (?:if not exists )?(\w+)\s+([^;]*);")
_FUNCTION = re.compile(
    r"((?:--[^\n]*\n)*)create (?:or replace )?function (redrive\.\w+)\((.*?)\)\s*returns ((?:setof )?\w+)", re.DOTALL
)
_COMMENT = re.compile(r"--[^\n]*")
PUBLIC_FUNCTIONS = ("publish", "outbox_replay", "cancel", "cancel_all", "guard", "batch_close")


def main() -> int:
    """Write the pages, or compare them."""
    pages = {"schema.md": schema(), "states.md": states(), "errors.md": error_list(), "python-api.md": python_api()}
    pages["http-api.md"] = http_api()
    pages |= {"metrics.md": metric_list(), "logs.md": log_lines()}
    if "--check" not in sys.argv:
        FOLDER.mkdir(exist_ok=True)
        for name, text in pages.items():
            (FOLDER / name).write_text(text, encoding="utf-8")
        return 0
    old = [name for name, text in pages.items() if not _is(FOLDER / name, text)]
    for name in old:
        print(f"docs/reference/{name} is out of date: run `python docs/generate.py`")  # noqa: T201 - a command prints
    return int(bool(old))


def _is(path: Path, text: str) -> bool:
    return path.exists() and path.read_text(encoding="utf-8") == text


# --- schema ---


def schema() -> str:
    """Write the tables and functions from the migrations."""
    postgres, sqlite = columns("postgres"), columns("sqlite")
    parts = [
        "# Schema\n",
        HEAD,
        _INTRODUCTION,
    ]
    for table, about in TABLES.items():
        here, there = postgres.pop(table, {}), sqlite.pop(table)
        parts += [f"## {table}\n", f"{about}\n", "| column | PostgreSQL | SQLite | |", "|---|---|---|---|"]
        for name in {**here, **there}:
            kinds = [f"`{kind}`" if kind else "" for kind in (here.get(name), there.get(name))]
            parts.append(f"| `{name}` | {kinds[0]} | {kinds[1]} | {COLUMNS[f'{table}.{name}']} |")
        parts.append("")
    if postgres or sqlite:
        message = f"say in TABLES what these are: {sorted({*postgres, *sqlite})}"
        raise SystemExit(message)
    return "\n".join((*parts, functions())) + _DEAD_LETTERS


_DEAD_LETTERS = """
## dead_letters

The view `redrive.dead_letters` (on SQLite `redrive_dead_letters`) shows the quarantine: what failed and was not
discarded, with the first 200 characters of the error. See the [runbook](../runbooks/dead-letters.md).
"""


def columns(store: str) -> dict[str, dict[str, str]]:
    """Read the columns of each table, in order, with their types."""
    found: dict[str, dict[str, str]] = {}
    for _version, _name, text in migrations(store):
        for table, body in _TABLE.findall(text):
            lines = (line.strip() for line in _COMMENT.sub("", body).splitlines())
            named = (re.match(r"(\w+)\s+(\w+(?:\[\])?)", line) for line in lines)
            found[table] = {m[1]: m[2] for m in named if m and m[1] not in ("primary", "check", "unique")}
        for table, name, kind in _ADDED.findall(text):
            found[table][name] = kind.split()[0]
    return found


def functions() -> str:
    """Write the SQL functions people may call."""
    parts = ["## Functions (PostgreSQL)\n"]
    latest: dict[str, tuple[str, str, str]] = {}
    for _version, _name, text in migrations("postgres"):
        for comment, name, arguments, returns in _FUNCTION.findall(text):
            latest[name] = (comment or latest.get(name, ("", "", ""))[0], arguments, returns)
    for name in PUBLIC_FUNCTIONS:
        comment, arguments, returns = latest[f"redrive.{name}"]
        words = [" ".join(argument.split()) for argument in arguments.split(",")]
        about = " ".join(line.removeprefix("--").strip() for line in comment.splitlines())
        parts += ["```text", f"redrive.{name}(", *(f"    {word}," for word in words[:-1]), f"    {words[-1]}"]
        parts += [f") returns {returns}", "```\n", f"{about or _ABOUT[name]}\n"]
    return "\n".join(parts)


_ABOUT = {
    "outbox_replay": "Send a dead letter round again, in place, with the same effect and the same trail as from "
    "Python. `p_new_generation` null keeps the event's generation; `p_replayed_by` is your name."
}


# --- states ---


def states() -> str:
    """Write who leaves each status."""
    parts = [
        "# States\n",
        HEAD,
        "An event is in one of these; how it moves between them is told in [the walk](../explanation/the-walk.md).\n",
        "| status | meaning, and who leaves it |",
        "|---|---|",
    ]
    told = _member_docs(Status)
    parts += [f"| `{status.value}` | {' '.join(told[status.name].split()).replace('``', '`')} |" for status in Status]
    parts.append(
        "\nA dead letter is `failed` with an empty `deleted_at`; a discarded one is `failed` with the time at which it "
        "was discarded. A retry is not a state: it is `pending` with a later `due_at`. An event is "
        "`blocked` on what `blocked_on` names ([an outage is not poison](../explanation/an-outage-is-not-poison.md), "
        "[its limit](../how-to/live-policies.md)); "
        "when it names nothing, an earlier event of its key ([keep events of one key in order]"
        "(../how-to/keep-in-order.md)).\n"
    )
    return "\n".join(parts)


def _member_docs(kind: type) -> dict[str, str]:
    """Read the strings under the members of an enum."""
    body = ast.parse(inspect.getsource(kind)).body[0]
    assert isinstance(body, ast.ClassDef)
    docs = {}
    for line, following in zip(body.body, body.body[1:], strict=False):
        if isinstance(line, ast.Assign) and isinstance(following, ast.Expr):
            name, text = line.targets[0], following.value
            assert isinstance(name, ast.Name)
            assert isinstance(text, ast.Constant)
            docs[name.id] = str(text.value)
    return docs


# --- errors ---


def error_list() -> str:
    """Write the errors in the order of their module."""
    parts = [
        "# Errors\n",
        HEAD,
        "All are subclasses of `redrive.RedriveError`. Those not exported by `redrive` are in `redrive.errors`.\n",
        "| error | is a | |",
        "|---|---|---|",
    ]
    for name in errors.__all__:
        kind = getattr(errors, name)
        bases = " ".join(f"`{base.__name__}`" for base in kind.__bases__ if base.__name__[0] != "_")
        parts.append(f"| `{name}` | {bases or '`HandlerError`'} | {_said(kind)} |")
    return "\n".join(parts) + "\n"


def _said(thing: object) -> str:
    return " ".join((inspect.getdoc(thing) or "").split()).replace("``", "`")


# --- HTTP ---


def http_api() -> str:
    """Write the routes from the description that the server itself gives, and who may call them."""
    described = api.described(redrive_asgi(redrive.Redrive("sqlite:///:memory:")).routes)
    parts = ["# HTTP API\n", HEAD, _HTTP, "## Roles\n", f"| | | {' | '.join(Role)} |"]
    parts.append("|---|---|" + "---|" * len(Role))
    for permission, meaning in MEANING.items():
        marks = " | ".join("✓" if permission in ALLOWED[role] else "" for role in Role)
        parts.append(f"| `{permission}` | {meaning} | {marks} |")
    found: dict[str, list[str]] = {}
    for path, methods in described["paths"].items():
        for method, told in methods.items():
            about = " ".join(told["description"].split("\n\n")[0].split())
            line = f"| `{method.upper()} {path.removeprefix('/api/v1')}` | `{told['x-permission']}` | {about} |"
            found.setdefault(told["tags"][0], []).append(line)
    for tag, lines in found.items():
        parts += [f"\n## {tag.capitalize()}\n", "| route | permission | |", "|---|---|---|", *lines]
    parts += ["\n## Problems\n", "| type | status | | what to do |", "|---|---|---|---|"]
    rules = sorted(
        (each for each in vars(problems).values() if isinstance(each, problems.Rule)), key=lambda r: r.status
    )
    parts += [f"| `{each.name}` | {each.status} | {each.title} | {each.next} |" for each in rules]
    return "\n".join(parts) + "\n"


_HTTP = """\
All paths begin with `/api/v1`, below wherever the app is [served or mounted](../how-to/serve.md). `GET /openapi.json`
describes them (OpenAPI 3.1). Send `Authorization: Bearer rdv_…`. Bodies are JSON; a field that is not known is refused.

- **Lists** answer `{"items": […], "next": "…"}`: ask again with `cursor=` and what `next` says. A page may hold fewer
  than `limit`, even none, and yet not be the last.
- **Ids** may be cut to a unique beginning. A `selection` is what the command line takes: `type:order.* age>1h`.
- **Acts** need a `reason`, which is on the trail with the name of the token.
- **`Idempotency-Key`** on anything but `GET`: the call has its effect once, and is answered the same for 24 hours.
  Another body with the same key is refused. What holds a secret is not kept.
- **`ETag`** of an event, as `If-Match`, is needed to edit it.
- **Secret fields** are hidden (`•••`) in payloads, headers and errors; `reveal` shows them, and is on the trail.
- **Errors** are `application/problem+json`: `type`, `title`, `status`, `detail`, and in `next` what to do.
  `errors` points at what does not fit.
- **`GET /changes`** is a stream of server-sent events: `{"topics": ["outbox", "redrive"]}` names the tables in which
  something has changed, at most once a second. It begins with `hello`; from there on nothing is missed.
- `GET /healthz` says that the process lives, `GET /readyz` that the database answers; both outside `/api/v1`.
"""
# --- signals ---

_METRICS = """Prometheus' text format, from `redrive worker --metrics`, or `redrive.operate.metrics.metrics_text(app)`.
Labels are bounded: after 200 types, targets or queues, the others count as `other` or are left out. See
[watch it](../how-to/watch-it.md).
"""
_LOGS = """One line is an event with its facts. They go to structlog where the application has configured it, else to
the standard logger `redrive`; the command line writes them to standard error, as JSON with `--log-format json`. See
[watch it](../how-to/watch-it.md).
"""
_ALERT = re.compile(
    r"- alert: (\w+)\n.*?severity: (\w+).*?summary: \"?(.*?)\"?\n\s+what_to_do: \"?(.*?)\"?\n", re.DOTALL
)
_SOURCE = Path(redrive.__file__).parent


def metric_list() -> str:
    """Write the families and the alerts as they are declared."""
    parts = ["# Metrics\n", HEAD, _METRICS]
    for title, families in (("Of each worker process", COUNTED), ("Of the database", KNOWN)):
        parts += [f"## {title}\n", "| name | kind | labels | |", "|---|---|---|---|"]
        parts += [
            f"| `{each.name}` | {each.kind} | {', '.join(f'`{label}`' for label in each.labels)} | {each.help} |"
            for each in families
        ]
        parts.append("")
    parts += ["## Alerts\n", "`redrive alerts` prints the rules.\n", "| alert | severity | says | what to do |"]
    parts.append("|---|---|---|---|")
    for name, severity, summary, what_to_do in _ALERT.findall(rules() + "\n"):
        parts.append(f"| `{name}` | {severity} | {_templated(summary)} | {_templated(what_to_do)} |")
    return "\n".join(parts) + "\n"


def _templated(text: str) -> str:
    return re.sub(r"\{\{ \$(?:labels\.)?(\w+).*? ?\}\}", lambda match: match[1].upper(), text)


def log_lines() -> str:
    """Write every line that is logged, with the names of its facts."""
    found: dict[tuple[str, str], set[str]] = {}
    for path in sorted(_SOURCE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if _is_log(node):
                assert isinstance(node, ast.Call)
                assert isinstance(node.func, ast.Attribute)
                text = ast.literal_eval(node.args[0])
                facts = {"…" if each.arg is None else each.arg for each in node.keywords}
                found.setdefault((node.func.attr, text), set()).update(facts)
    found["error", "event dead-lettered"] = _dead_lettered_facts()
    parts = ["# Logs\n", HEAD, _LOGS]
    for level in ("error", "warning", "info", "debug"):
        parts += [f"## {level}\n", "| event | facts |", "|---|---|"]
        lines = sorted((text, facts) for (of, text), facts in found.items() if of == level)
        parts += [f"| {text} | {', '.join(f'`{fact}`' for fact in sorted(facts))} |" for text, facts in lines]
        parts.append("")
    return "\n".join(parts)


def _is_log(node: ast.AST) -> bool:
    return (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and isinstance(node.func.value, ast.Name)
        and node.func.value.id == "log"
        and bool(node.args)
        and isinstance(node.args[0], ast.Constant)
    )


def _dead_lettered_facts() -> set[str]:
    """Read them off the dictionary that the log line and the Sentry event share."""
    for node in ast.walk(ast.parse((_SOURCE / "alarm.py").read_text(encoding="utf-8"))):
        if isinstance(node, ast.Dict) and isinstance(node.keys[0], ast.Constant) and node.keys[0].value == "event_id":
            return {ast.literal_eval(key) for key in node.keys if key is not None}
    raise SystemExit("alarm.py says no longer what a dead letter's log line has")


# --- Python API ---


def python_api() -> str:
    """Write everything that is exported, in the order of ``__all__``."""
    parts = ["# Python API\n", HEAD]
    parts.append("Everything here is imported from `redrive`; `Harness` and its kin from `redrive.testing`.\n")
    for name in redrive.__all__:
        parts += _entry(name, getattr(redrive, name))
    parts.append("# redrive.testing\n")
    for name in testing.__all__:
        parts += _entry(name, getattr(testing, name))
    return re.sub("\n{3,}", "\n\n", "\n".join(parts)).rstrip() + "\n"


def _entry(name: str, thing: type) -> list[str]:
    if inspect.isfunction(thing):
        return [f"## {name}\n", *_member(name, thing)]
    if issubclass(thing, errors.RedriveError):
        return [f"## {name}\n", f"{_said(thing)} See [errors](errors.md).\n"]
    parts = [f"## {name}\n", f"{_paragraphs(thing)}\n"]
    if is_dataclass(thing) and thing is not redrive.RetryPolicy:
        parts += [_field_table(thing)] if thing is not Event else ["The columns of [outbox](schema.md), and:\n"]
    elif issubclass(thing, Enum):
        parts.append(", ".join(f"`{member.name}` ({member.value})" for member in thing) + "\n")
        return parts
    elif "__init__" in vars(thing) and name not in ("Worker", "Context", "Work"):
        own = "" if thing.__init__.__doc__ is None else _paragraphs(thing.__init__)
        parts += [_code(f"{name}{_signature(thing.__init__)}"), f"{own}\n"]
    for member, value in _members(thing).items():
        parts += _member(member, value)
    parts.append("")
    return parts + (_options() if name == "Redrive" else [])


def _members(thing: type) -> dict[str, object]:
    """Collect what is public of a class; of the app, what it is told, what it does, what it is asked."""
    parts = (Registry, redrive.Redrive, Operations) if thing is redrive.Redrive else (thing,)
    return {name: value for part in parts for name, value in vars(part).items() if not name.startswith("_")}


def _options() -> list[str]:
    """List what every publish takes beside type and payload."""
    body = ast.parse(inspect.getsource(Options)).body[0]
    assert isinstance(body, ast.ClassDef)
    named = [line for line in body.body if isinstance(line, ast.AnnAssign)]
    lines = [f"- `{ast.unparse(line)}`: {OPTIONS[ast.unparse(line.target)]}" for line in named]
    return ["### Options of a publish\n", *lines, ""]


def _member(name: str, value: object) -> list[str]:
    if isinstance(value, property):
        return [f"- `{name}: {_returns(value.fget)}`" + (f": {_said(value)}" if value.__doc__ else "")]
    wrapped = value.__func__ if isinstance(value, classmethod | staticmethod) else value
    if not inspect.isfunction(wrapped):
        return []
    word = "await " if inspect.iscoroutinefunction(wrapped) else ""
    kind = "classmethod " if isinstance(value, classmethod) else ""
    return ["", _code(f"{kind}{word}{name}{_signature(wrapped)}"), f"{_paragraphs(wrapped)}\n"]


def _signature(function: Any) -> str:
    """Write the parameters as the source does: the same on every version of Python."""
    given = _definition(function).args
    places = given.posonlyargs + given.args
    defaults: list[ast.expr | None] = [None] * (len(places) - len(given.defaults))
    kept = [_parameter(*pair) for pair in zip(places, [*defaults, *given.defaults], strict=True)]
    if given.vararg or given.kwonlyargs:
        kept.append(f"*{_parameter(given.vararg)}" if given.vararg else "*")
    kept += [_parameter(*pair) for pair in zip(given.kwonlyargs, given.kw_defaults, strict=True)]
    kept += [f"**{given.kwarg.arg}"] if given.kwarg else []
    returns = _returns(function)
    tail = "" if returns == "None" else f" -> {returns}"
    kept = [each for each in kept if each not in ("self", "cls")]
    flat = f"({', '.join(kept)}){tail}"
    return flat if len(flat) <= _LINE else "(\n" + "".join(f"    {each},\n" for each in kept) + f"){tail}"


def _definition(function: Any) -> ast.FunctionDef | ast.AsyncFunctionDef:
    found = ast.parse(textwrap.dedent(inspect.getsource(function))).body[0]
    assert isinstance(found, ast.FunctionDef | ast.AsyncFunctionDef)
    return found


def _returns(function: Any) -> str:
    returns = _definition(function).returns
    return ast.unparse(returns).strip("'") if returns else "None"


def _parameter(given: ast.arg, default: ast.expr | None = None) -> str:
    kind = f": {ast.unparse(given.annotation)}" if given.annotation else ""
    return given.arg + kind + (f" = {ast.unparse(default)}" if default else "")


def _field_table(thing: type) -> str:
    body = ast.parse(inspect.getsource(thing)).body[0]
    assert isinstance(body, ast.ClassDef)
    lines = [f"- `{ast.unparse(line)}`" for line in body.body if isinstance(line, ast.AnnAssign)]
    return "\n".join(lines) + "\n"


def _paragraphs(thing: object) -> str:
    return (inspect.getdoc(thing) or "").replace("``", "`")


def _code(text: str) -> str:
    return f"```text\n{text}\n```\n"


if __name__ == "__main__":
    sys.exit(main())
