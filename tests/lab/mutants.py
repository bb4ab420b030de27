"""Mutants: the core with one deliberate bug each, and the experiment that must catch it.

An experiment that catches none of them proves nothing. ``python -m tests.lab.mutants [NAME …]`` puts each into a copy
of ``src``, runs its experiment on that, and writes down which were caught, by what and how soon
(``docs/mutants.json``).
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from tests import warm
from tests.lab.record import ROOT

RESULTS = ROOT / "docs" / "mutants.json"
SEEDS = 400
"""How many seeds may pass before a mutant counts as alive."""

_LEFT_ALONE = 600.0  # seconds
_HOW_MANY = re.compile(r"^(\d+) in ", re.MULTILINE)
_VIOLATIONS = re.compile(r"^violations: \{'([^']+)'", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Mutant:
    """What is changed (in a file below ``src/redrive``), what that breaks, and who notices."""

    name: str
    breaks: str
    file: str
    old: str
    new: str
    caught_by: str = "simulation"  # or that of the wider world, or "crash points", or the test that notices


@dataclass(frozen=True, slots=True)
class Caught:
    """What became of one."""

    name: str
    breaks: str
    caught_by: str
    as_what: str
    after: int
    seconds: float
    is_caught: bool


WIDER = "simulation, wide"
REDRIVEN = "simulation, redriven"
POSTGRES = "store/postgres"
_FENCED = "where id = :id and fence = :fence and status = 'in_flight'"
_STORES = "tests/stores/test_sessions.py tests/stores/test_fencing.py"
_UNFENCED = "where id = :id and :fence = :fence and status = 'in_flight'"
_OVERLAP = "tests/lab/test_interleavings.py"
_BESIDE = "tests/lab/test_overlaps.py"
_GATE = "tests/redrive/test_gate.py"
_KEPT = "tests/stores/test_retention.py tests/lab/test_retention.py"
_TRANSACTIONS = "tests/worker/test_transactions.py"
_TOGETHER = "tests/lab/test_model.py tests/lab/test_pairs.py"

MUTANTS = [
    Mutant("settle-no-fence", "who lost the lease writes a failure into another's attempt",
           "store/sqlite/settle.sql", _FENCED, _UNFENCED),
    Mutant("deliver-no-fence", "who lost the lease delivers another's attempt",
           "store/sqlite/deliver_named.sql", _FENCED, _UNFENCED),
    Mutant("put-back-no-fence", "who lost the lease puts another's attempt back",
           "store/sqlite/put_back.sql", _FENCED, _UNFENCED, _STORES),
    Mutant("deliver-cancelled", "what was called off in flight is delivered all the same",
           "store/sqlite/deliver_named.sql", "and status = 'in_flight'", "and status in ('in_flight', 'cancelled')"),
    Mutant("fence-not-raised", "a claim does not raise the fence",
           "store/sqlite/claim.sql", "fence = fence + not due.waits", "fence = fence"),
    Mutant("sweep-no-fence", "a sweep leaves the fence to the late worker",
           "store/sqlite/sweep.sql", "fence = fence + 1,", "fence = fence,", _STORES),
    Mutant("sweep-no-guard", "a sweep takes what living sessions hold",
           "store/sqlite/sweep.sql", "select id from redrive_session where ended_at is not null",
           "select id from redrive_session"),
    Mutant("expire-alive", "sessions are ended before their lease has run out",
           "store/sqlite/session_expire.sql", "lease_until < :now", "lease_until < :now + 1500000"),
    Mutant("expire-nobody", "sessions of the dead are never ended",
           "store/sqlite/session_expire.sql", "lease_until < :now and not :waited", "0"),
    Mutant("heartbeat-raises-dead", "a heartbeat renews a session that others have ended",
           "store/sqlite/heartbeat.sql", "where id = :id and ended_at is null", "where id = :id"),
    Mutant("lease-not-renewed", "a heartbeat renews nothing",
           "store/sqlite/heartbeat.sql", "lease_until = :now + :lease", "lease_until = max(lease_until, :lease)",
           "crash points"),
    Mutant("ghost-claims", "a session that was swept goes on claiming",
           "store/sqlite.py", "if want <= 0 or not self._alive(connection):", "if want <= 0:"),
    Mutant("lost-for-ever", "an event that kills its workers is never set apart",
           "store/sqlite/sweep.sql", "status = case when lease_until is null and lost_count + 1 < :max_lost",
           "status = case when lease_until is null and :max_lost = :max_lost"),
    Mutant("forgotten-runs-again", "an event that a sweep took in order to bury it is run when the answer was lost",
           "store/sqlite/forget.sql", "status = case when lost_count >= :max_lost or lease_until is not null then",
           "status = case when 0 then", "tests/stores/test_claims.py"),
    Mutant("lost-not-counted", "a crash spends an attempt",
           "store/sqlite/sweep.sql", "then attempts - 1 else attempts end", "then attempts else attempts end",
           _STORES),
    Mutant("attempts-at-settle", "an attempt is counted when it ends, so a crash counts none",
           "store/sqlite/claim.sql", "attempts = attempts + not due.waits", "attempts = attempts"),
    Mutant("retries-for-ever", "max_attempts is not looked at",
           "settle.py", "and policy.should_retry(row[ATTEMPTS])", "and policy.max_attempts > 0", "crash points"),
    Mutant("put-back-spends", "an attempt that was not made is counted",
           "store/sqlite/put_back.sql", "attempts = attempts - 1", "attempts = attempts"),
    Mutant("due-ignored", "events are run before they are due",
           "store/sqlite/claim.sql", "and p.due_at <= :now", "and p.due_at <= :now + 3600000000"),
    Mutant("jitter-negative", "a retry is due before the failure",
           "policy.py", "return delay * (1.0 + self.jitter * (2.0 * dice() - 1.0))",
           "return delay * (self.jitter * (2.0 * dice() - 1.0))", "tests/words/test_policy.py"),
    Mutant("time-goes-back", "a clock that was set back is believed",
           "store/writer.py", "now = max(wall, seen)", "now = wall"),
    Mutant("runs-ahead", "who is put to sleep while it looks at its clocks is ahead of time from then on",
           "store/writer.py", "wall = to_micros(self._clock.now())  # first: who is put to sleep between the two would"
           " run ahead for ever\n        monotonic = self._clock.monotonic()\n",
           "monotonic = self._clock.monotonic()\n        wall = to_micros(self._clock.now())\n",
           "tests/stores/test_time.py"),
    Mutant("trail-sweep-forgotten", "what was lost with its worker is not on the trail",
           "store/sqlite.py", "write_trail(connection, str(session_id), now, entries)", "pass"),
    Mutant("trail-settle-forgotten", "retries and dead letters are not on the trail",
           "store/sqlite.py", "    write_trail(connection, chain, now, entries)\n    count_dead", "    count_dead"),
    Mutant("trail-apart", "a cancel is committed before its trail entry",
           "store/sqlite.py", "    write_trail(connection, OPERATOR, now, entries)\n    return [entry[0]",
           '    connection.execute("commit")\n    connection.execute("begin immediate")\n'
           "    write_trail(connection, OPERATOR, now, entries)\n    return [entry[0]"),
    Mutant("trail-chain-broken", "an entry does not depend on the one before",
           "store/sqlite.py", "previous = entry_hash(previous, chain,", 'previous = entry_hash("", chain,'),
    Mutant("replay-resets-fence", "a replay begins with fence 0",
           "store/sqlite/redrive_release.sql", "attempts = 0, lost_count = 0,",
           "attempts = 0, fence = 0, lost_count = 0,"),
    Mutant("replay-resets-key", "a replay has a new idempotency key",
           "store/sqlite/redrive_release.sql", "    passed = 0,\n", "    passed = 0, idempotency_key = id || cycle,\n"),
    Mutant("replay-keeps-attempts", "a replay goes on counting where the dead letter ended",
           "store/sqlite/redrive_release.sql", "attempts = 0, lost_count = 0,", "lost_count = 0,"),
    Mutant("handled-not-checked", "a key that had its effect has it again",
           "inbox.py", "            if not await self._inner.mark_handled(",
           "            if None is await self._inner.mark_handled("),
    Mutant("handled-apart", "the key is committed before the effect",
           "inbox.py", "        lease.is_open = True\n        return self",
           '        await self._inner.execute("commit")\n        await self._inner.execute("begin immediate")\n'
           "        lease.is_open = True\n        return self"),
    Mutant("lost-lease-commits", "what a handler did without its lease is committed",
           "inbox.py", "if not await self._inner.deliver(self._lease.event_id, self._lease.fence):",
           "if await self._inner.deliver(self._lease.event_id, self._lease.fence) is None:"),
    Mutant("hook-apart", "an outcome is committed before what its hook writes",
           "hook.py", '            (written,) = await transaction.run("settled", id=row[ID])',
           '            await transaction.execute("commit")\n            await transaction.execute("begin immediate")\n'
           '            (written,) = await transaction.run("settled", id=row[ID])'),
    Mutant("promote-forgotten", "the next of a key is not let go",
           "store/sqlite.py", "    promote(connection, now, connection.execute(query, (event_id,)).fetchall())\n", ""),
    Mutant("order-ignored", "events of a key overtake each other",
           "store/sqlite/claim.sql", "and l.seq < p.seq)", "and l.seq < p.seq and 0)"),
    Mutant("two-of-a-key", "two events of a key are under way at once",
           "store/sqlite/claim.sql", "and f.ordering_key = p.ordering_key)) as waits",
           "and f.ordering_key = p.ordering_key and 0)) as waits"),
    Mutant("key-free-at-cancel", "the next of a key starts while the cancelled handler still runs",
           "store/sqlite/migrations/0016_hardening.sql",
           "where ordering_key is not null and status = 'cancelled' and session_id is not null",
           "where ordering_key is not null and status = 'cancelled' and session_id is not null and 0",
           "tests/stores/test_keys.py"),
    Mutant("sweep-deaf", "a sweep ends sessions that nobody could renew while the file was locked",
           "worker.py", "        await self._store.hear_out(gone)\n", "", "tests/worker/test_sqlite_faults.py"),
    Mutant("presence-unseen", "the work of a killed process waits for the end of its lease",
           "worker.py", 'return [UUID(str(row["id"])) for row in rows if row["process"] in gone]', "return []",
           "tests/worker/test_presence.py"),
    Mutant("presence-everywhere", "a process of another machine is looked for on this one",
           "presence.py", "if place != _place() or not pid.isdigit():", "if not pid.isdigit():",
           "tests/worker/test_presence.py"),
    Mutant("pg-turn-waits", "a turn waits for the row that somebody else has locked",
           f"{POSTGRES}.py", "set lock_timeout = '{_TURN_WAIT}'", "select 1",
           "tests/lab/test_strangers.py"),
    Mutant("pg-operators-chain", "a worker's duties write to the chain that operators hold",
           f"{POSTGRES}.py", '        "chain": current_chain(),', '        "chain": "operator",',
           "tests/lab/test_strangers.py::test_a_worker_writes_its_own_chain_while_a_stranger_holds_the_operators"),
    Mutant("notice-forgotten", "a batch whose last member was delivered says nothing",
           "store/sqlite.py", "    look_at_batches(connection, now, [event_id])\n", ""),
    Mutant("notice-early", "a batch says that it is done while members wait",
           "store/sqlite/batch_look.sql", "o.batch_id is not null and o.ended_at is null) then :now end",
           "o.batch_id is not null and o.status = 'in_flight') then :now end", "crash points"),
    Mutant("release-not-marked", "a member of a redrive stays ready after it went",
           "store/sqlite/redrive_mark.sql", "when :why is null then 'released'", "when :why is null then 'ready'"),
    Mutant("stage-by-position", "a gate does not see members behind one that waits for its key",
           "store/sqlite/redrive_stage.sql", "and stage = :stage and stage is not null",
           "and stage = :stage and stage is not null and position < coalesce((select min(r.position) from"
           " redrive_redrive_item r where r.redrive_id = :id and r.state = 'ready'), 9223372036854775807)", REDRIVEN),
    Mutant("members-by-id", "a redrive takes the ids of a key for its order",
           "store/sqlite/redrive_line.sql", "(partition by x.line order by x.place)",
           "(partition by x.line order by x.position)", REDRIVEN),
    Mutant("members-all-at-once", "members of a key do not wait for each other",
           "store/sqlite/redrive_line.sql", "set waits = i.state = 'ready'", "set waits = 0", REDRIVEN),
    Mutant("next-of-line-forgotten", "a member waits for an earlier one of its key that has ended",
           "store/sqlite/migrations/0016_hardening.sql", "update redrive_redrive_item set waits = 0",
           "update redrive_redrive_item set waits = 1", REDRIVEN),
    Mutant("rest-ungated", "after its ramp, or without one, a redrive never halts",
           "redrive.py", "if in_stage is None and await _halted(tx, standing):", "if False:", _GATE),
    Mutant("released-unproven", "all at once everything is released before the first has failed",
           "redrive.py", "room = min(room, max(JUDGED, _GROWTH * standing.delivered))", "pass", _GATE),
    Mutant("release-by-window", "a slow key stalls a redrive at a rate",
           "store/sqlite/redrive_pick.sql",
           "from (select * from redrive_redrive_item indexed by redrive_redrive_item_free\n"
           "      where redrive_id = :id and state = 'ready' and waits = 0 order by position limit :limit) i",
           "from (select * from (select * from redrive_redrive_item where redrive_id = :id and state = 'ready'"
           " order by position limit 4 * :limit) where waits = 0 order by position limit :limit) i", _GATE),
    Mutant("replay-unserved", "a replay goes to a generation that nobody serves",
           "store/sqlite/redrive_pick.sql", "s.generation, null)), max(s.generation)) from",
           "s.generation, null)), null) from",
           "tests/redrive/test_generations.py"),
    Mutant("pg-members-by-id", "a redrive takes the ids of a key for its order",
           f"{POSTGRES}/migrations/0016_hardening.sql", "(partition by x.line order by x.place, x.event_id)",
           "(partition by x.line order by x.position)", "tests/redrive/test_keys.py"),
    Mutant("group-not-counted", "a dead letter is missing in its group",
           "store/sqlite.py", "    count_dead(connection, [entry[0] for entry in entries if",
           "    count_dead(connection, [entry[0] for entry in entries[1:] if"),
    Mutant("discard-not-counted", "a discarded dead letter stays in its group",
           "replay.py", '    await tx.run("group_uncount", fingerprints=prints)\n', ""),
    Mutant("steps-not-undone", "a dead letter leaves its steps done",
           "store/sqlite/migrations/0004_steps.sql",
           "when new.status in ('failed', 'cancelled') and old.status <> new.status and new.type",
           "when new.status in ('cancelled') and old.status <> new.status and new.type", "crash points"),
    Mutant("step-no-fence", "who lost the lease keeps a step",
           "store/sqlite/step_write.sql", "o.id = :id and o.fence = :fence and o.status = 'in_flight'",
           "o.id = :id and :fence = :fence and o.status = 'in_flight'", "tests/steps/test_steps.py"),
    Mutant("two-holders", "a reservation is taken from its holder",
           "store/sqlite/reservation_take.sql",
           "where redrive_reservation.released_at is not null or redrive_reservation.until <= excluded.taken_at",
           "where true"),
    Mutant("answer-before-commit", "a publish is acknowledged before it is durable",
           "store/writer.py", "            self.commit(now, before)\n        except",
           "            self._answer(group)\n            group = []\n"
           "            self.commit(now, before)\n        except"),
    Mutant("raw-disk-error", "a disk error in a transaction is not called StoreUnavailable",
           "store/sqlite.py", "return await self._theirs(lambda: _ours(job))", "return await self._theirs(job)"),
    Mutant("clock-error-kills", "a disk error at the look at the clock ends the worker",
           "store/writer.py", "self._roll_back_quietly()  # SQLite may have done so itself",
           'self.connection.execute("rollback")'),
    Mutant("drain-hangs", "a drain waits for the bell of an event that has ended already",
           "worker.py", "if self._hands.held and not may_go_on:", "if not may_go_on:"),
    Mutant("asks-by-the-wall", "whoever only asks believes a clock that was set back, and probes nothing for an hour",
           "store/sqlite.py",
           "return max(to_micros(self.clock.now()), highest, self.writer.carried(self.clock.monotonic()))",
           "return to_micros(self.clock.now())", "tests/stores/test_time.py"),
    Mutant("stopping-spins", "a stopping worker with throttled events takes a whole core",
           "worker.py", "_LOOK_AGAIN if is_hindered else 0.0", "0.0"),
    Mutant("migration-in-parts", "a migration that is killed is there, and not written down",
           "store/sqlite.py", "                connection.execute(part)\n            connection.execute(",
           "                connection.execute(part)\n            connection.execute('commit')\n"
           "            connection.execute('begin immediate')\n            connection.execute(",
           "tests/lab/test_upgrade.py"),
    Mutant("migration-without-a-look", "of two processes that migrate at once one fails",
           "store/sqlite.py",
           '            if version <= _version_of(connection):\n                connection.execute("rollback")',
           '            if False:\n                connection.execute("rollback")', "tests/stores/test_schema.py"),
    Mutant("hands-for-all", "events that wait for a child fill the hands of their worker",
           "throttle.py", "        return min(hands, self._most_apart - taken)", "        return hands",
           "tests/worker/test_isolation.py"),
    Mutant("look-for-settle", "what has finished is not written down when nothing else is due",
           "store/sqlite.py", "look=None if finished else look", "look=look"),
    Mutant("route-unguarded", "whoever is known may do everything",
           "operate/web/guard.py", "permission is not None and not caller.may(permission):", "permission is None:",
           "tests/lab/test_security.py"),
    Mutant("cursor-believed", "a cursor that somebody made up is an error of ours",
           "operate/cursor.py", "        return None if place is None else UUID(place)\n    except ValueError:",
           "        return None if place is None else UUID(place)\n    except KeyError:", "tests/lab/test_http.py"),
    # One value of one argument of one command: the short form, with three lines of each, does not come by it.
    Mutant("value-error-at-the-terminal", "a payload that is no JSON is an error of ours",
           "operate/cli/publish.py", "except json.JSONDecodeError as error:",
           "except RecursionError as error:", "tests/lab/test_cli.py -m lab"),
    Mutant("looking-writes", "whoever lists events changes the database",
           "operate/cli/events.py", "        now = app_.clock.now()\n    if events or",
           "        await app_.publish('looked')\n        now = app_.clock.now()\n    if events or",
           "tests/lab/test_cli.py"),
    Mutant("secret-told", "what is secret in a payload is shown",
           "operate/masked.py", '    told["payload"] = mask.everywhere(found.payload, secrets=secrets)\n', "",
           "tests/lab/test_secrets.py"),
    Mutant("pen-kept", "a transaction that could not begin keeps all others from writing",
           "store/writer.py", "            self.pen.release()\n            raise", "            raise"),
    Mutant("members-read-through", "retention reads the members of every redrive",
           "store/sqlite/purge_members.sql", "r cross join redrive_redrive_item", "r join redrive_redrive_item",
           "tests/lab/test_bloat.py"),
    Mutant("overview-reads-all", "the overview reads the whole table until enough was delivered",
           "store/sqlite/overview.sql", "redrive_outbox indexed by redrive_outbox_ended", "redrive_outbox not indexed",
           "tests/lab/test_bloat.py"),
    Mutant("permits-unseen", "permits that other workers hold are not counted",
           "store/sqlite/throttle_used.sql", "and s.ended_at is null), 0)", "and s.ended_at < 0), 0)"),
    Mutant("suspect-unthrottled", "an event that has only one chance left needs no permit",
           "worker.py", "if not self._throttles.arrive(row, is_probe=are_probes)",
           "if row[LOST_COUNT] >= self.options.max_lost - 1 or not self._throttles.arrive(row)",
           "tests/worker/test_throttles.py"),
    Mutant("tick-twice", "two workers publish the same tick of a schedule",
           "store/sqlite/schedule_advance.sql", "and redrive_schedule.next_at = w.expected ", "", WIDER),
    Mutant("tick-again", "a schedule whose times are changed ticks once more as before",
           "store/sqlite/schedule_write.sql", "when excluded.next_at <= redrive_schedule.last_at then :following_at",
           "when excluded.next_at <= 0 then :following_at", "tests/schedule/test_schedules.py"),
    Mutant("purge-live", "a purge removes what has not ended",
           "store/sqlite/purge_ended.sql", "o.status in ('delivered', 'cancelled') and o.ended_at < :before",
           "o.status <> 'failed' and coalesce(o.ended_at, o.created_at) < :before", WIDER),
    Mutant("purge-uncounted", "a purge leaves dead letters in the counts of their groups",
           "store/sqlite.py", "                uncount_dead(connection, [row[0] for row in rows])\n", "", WIDER),
    Mutant("tick-of-before", "a schedule that was changed meanwhile ticks as before",
           "store/sqlite/schedule_advance.sql", " and redrive_schedule.digest = w.digest", "",
           "tests/schedule/test_schedules.py"),
    # The same and others on PostgreSQL, where transactions overlap.
    Mutant("pg-settle-no-fence", "who lost the lease writes a failure into another's attempt",
           f"{POSTGRES}/settle.sql", "      and o.fence = (:fences::bigint[])[array_position(:ids::uuid[], o.id)]\n",
           "      and cardinality(:fences::bigint[]) > 0\n", _TOGETHER),
    Mutant("pg-settle-ended", "what was called off meanwhile is settled all the same",
           f"{POSTGRES}/settle.sql", "and coalesce(o.status, '') = 'in_flight'", "", _TOGETHER),
    Mutant("pg-deliver-no-fence", "who lost the lease delivers another's attempt",
           f"{POSTGRES}/turn.sql", "in (select d.id, d.fence from", "in (select d.id, o.fence from", _TOGETHER),
    Mutant("pg-handle-no-fence", "what a handler did without its lease is committed",
           f"{POSTGRES}/deliver.sql", "and fence = :fence::bigint and", "and :fence::bigint > 0 and", _TOGETHER),
    Mutant("pg-put-back-no-fence", "who lost the lease puts another's attempt back",
           f"{POSTGRES}/put_back.sql", "o.fence = (:fences", "0 < (:fences", _TOGETHER),
    Mutant("pg-fence-not-raised", "a claim does not raise the fence",
           f"{POSTGRES}/turn.sql", "attempts = o.attempts + 1, fence = o.fence + 1,", "attempts = o.attempts + 1,",
           _TOGETHER),
    Mutant("pg-claimed-twice", "two claims at once take the same event",
           f"{POSTGRES}/turn.sql", "        for update of p skip locked\n", "", _OVERLAP),
    Mutant("pg-ghost-claims", "a session that was swept goes on claiming",
           f"{POSTGRES}/turn.sql", "where s.id = :session::uuid and s.ended_at is null)",
           "where s.id = :session::uuid)", "tests/stores/test_sessions.py"),
    Mutant("pg-sweep-no-guard", "a sweep takes what living sessions hold",
           f"{POSTGRES}/sweep.sql", "from redrive.session s where s.ended_at is not null union",
           "from redrive.session s union", _TOGETHER),
    Mutant("pg-swept-twice", "two sweeps at once take the same event",
           f"{POSTGRES}/sweep.sql", "        limit :limit\n        for update of l skip locked)",
           "        limit :limit)", _OVERLAP),
    Mutant("pg-sweep-no-fence", "a sweep leaves the fence to the late worker",
           f"{POSTGRES}/sweep.sql", "        fence = o.fence + 1,\n", "", _TOGETHER),
    Mutant("pg-heartbeat-raises-dead", "a heartbeat renews a session that others have ended",
           f"{POSTGRES}/heartbeat.sql", "where id = :id::uuid and ended_at is null", "where id = :id::uuid", _TOGETHER),
    Mutant("pg-forgets-late", "a server that was silent puts back what was claimed since",
           f"{POSTGRES}/forget.sql", "(select clock_timestamp()) < :until::timestamptz",
           ":until::timestamptz is not null", "tests/worker/test_postgres_faults.py tests/stores/test_claims.py"),
    Mutant("pg-released-unlocked", "a member that somebody moves meanwhile is released all the same",
           f"{POSTGRES}/migrations/0016_hardening.sql",
           "perform from redrive.outbox o where o.id = any(v_events) order by o.id for update;", "", _OVERLAP),
    Mutant("pg-trail-unlocked", "two who write to the trail at once continue from the same entry",
           f"{POSTGRES}/migrations/0001_engine.sql",
           "    perform pg_advisory_xact_lock(hashtextextended('redrive.trail:' || p_chain, 0));\n", "", _OVERLAP),
    Mutant("pg-group-not-counted", "a dead letter is missing in its group",
           f"{POSTGRES}/settle.sql", "redrive.count_dead(array_agg(id), true,",
           "redrive.count_dead(null::uuid[], true,", _TOGETHER),
    Mutant("follow-ups-at-once", "an attempt that fails has published its follow-ups",
           "context.py", "        return self._keep(events)\n",
           "        return (await self._desk.store.publish(events))[0]\n", "tests/worker/test_follow_ups.py"),
    Mutant("follow-ups-without-fence", "a worker whose lease was lost publishes follow-ups",
           "store/sqlite.py", "            if not _deliver_row(connection, now, str(event_id), fence):\n"
           "                return False\n", "            _deliver_row(connection, now, str(event_id), fence)\n",
           "tests/worker/test_follow_ups.py"),
    Mutant("pg-key-left-behind", "what is blocked while the one before it ends stays blocked",
           f"{POSTGRES}/migrations/0006_keys.sql",
           "          and f.status = 'in_flight'\n        for share of f skip locked) before",
           "          and f.status = 'in_flight') before", _OVERLAP),
    Mutant("pg-two-of-a-key", "two events of a key are under way at once",
           f"{POSTGRES}/migrations/0006_keys.sql", "    if v_behind is null then", "    if true then", _TOGETHER),
    Mutant("pg-batch-unlocked", "of members that end at once none sees that the batch has ended",
           f"{POSTGRES}/migrations/0008_batches.sql",
           "    select pg_advisory_xact_lock(hashtextextended('redrive.batch:' || p_id, 0))\n", "    select\n",
           "tests/batch/test_races.py"),
    Mutant("pg-batch-after-trail", "who cancels a member and who forces its batch wait for each other",
           f"{POSTGRES}/migrations/0015_lock_order.sql",
           "    set constraints redrive.outbox_batch_look immediate;\n", "", _BESIDE),
    Mutant("pg-key-released-twice", "two who release a key at once both have done it",
           f"{POSTGRES}/key_release.sql", " and not passed\n", "\n", _BESIDE),
    Mutant("pg-edit-of-another-cycle", "an edit that is proposed while its event is replayed is one of the next cycle",
           f"{POSTGRES}/revision_plan.sql", "for share of o  -- its", "-- its", _BESIDE),
    Mutant("pg-two-holders", "a reservation is taken from its holder",
           f"{POSTGRES}/reservation_take.sql", "and (r.released_at is not null or r.until <= m.now)", "",
           "tests/reserve/test_reservations.py"),
    Mutant("pg-permits-unlocked", "two give permits at once, each without the other's",
           f"{POSTGRES}/throttle_lock.sql", "do update set target = excluded.target\n", "do nothing\n",
           "tests/worker/test_throttles.py"),
    Mutant("pg-tick-of-before", "a schedule that was changed meanwhile ticks as before",
           f"{POSTGRES}/schedule_advance.sql", "and s.digest = w.digest and", "and",
           "tests/schedule/test_schedules.py"),
    Mutant("pg-schedule-unlocked", "two who change a schedule at once do not wait for each other",
           f"{POSTGRES}/schedules_lock.sql",
           "select pg_advisory_xact_lock(hashtextextended(", "select (hashtextextended(", _BESIDE),
    Mutant("pg-step-no-fence", "who lost the lease keeps a step",
           f"{POSTGRES}/step_write.sql", "o.fence = :fence::bigint and o.status = 'in_flight' for share",
           "0 < :fence::bigint and o.status = 'in_flight' for share", "tests/steps/test_steps.py"),
    Mutant("fingerprint-by-folder", "a deployment to another folder makes every failure a new one",
           "classify.py", 'return f"{module}:{function}",', 'return f"{filename}:{function}",',
           "tests/lab/test_checkouts.py"),
    Mutant("fingerprint-versions-compared", "after an upgrade no failure is the same as before, and gates open",
           "store/sqlite/redrive_outcomes.sql", "and g.error_type = o.error_type)", "and false)",
           "tests/lab/test_checkouts.py tests/redrive/test_groups.py"),
    Mutant("own-database-blamed", "an error of the handler's own database opens the circuit of a dependency",
           "classify.py", "and rule not in _OF_A_DATABASE and", "and", "tests/worker/test_dependencies.py"),
    Mutant("disk-blamed", "a full disk opens the circuit of a dependency",
           "classify.py", "if rule is _ANY_OS_ERROR and _is_of_network(exc):", "if rule is _ANY_OS_ERROR:",
           "tests/worker/test_dependencies.py"),
    Mutant("circuit-one-late", "failures while the others are being told do not open a circuit in time",
           "circuit.py", "self._shut = untold | {", "self._shut = {",
           "tests/worker/test_dependencies.py::"
           "test_a_circuit_opens_at_its_threshold_even_while_the_first_failures_are_being_told"),
    Mutant("brake-not-listed", "an open brake is on the list of what needs a person after an hour only",
           "attention.py", "each.kind is Kind.BRAKE or look.seconds", "look.seconds",
           "tests/operate/test_attention.py"),
    Mutant("brake-forgets", "what fails while the others are being told of a brake is not braked",
           "circuit.py", "yield target, News(failed, passed), counted",
           "self._told[target] = counted; yield target, News(failed, passed), counted",
           "tests/worker/test_dependencies.py::"
           "test_nothing_is_buried_either_while_the_others_are_being_told_of_the_brake"),
    # Connections, and who waits for whom.
    Mutant("pg-one-pool", "handlers, hooks, publishing and duties share their connections",
           "store/connections.py", "key = (use, 0 if use in (Use.CALL, Use.DUTY_CALL) else _depth.get())",
           "key = (Use.HANDLER, 0)", _TRANSACTIONS),
    Mutant("pg-one-depth", "a transaction inside another waits for the connections of the outer ones",
           "store/connections.py", "_depth.set(depth + 1)", "_depth.set(depth)", _TRANSACTIONS),
    Mutant("pg-pool-wait-fails", "who waits for one of our own connections is told that the database does not answer",
           "store/connections.py", "await places.enter(None if use.is_lent else seconds)",
           "await places.enter(seconds)", _TRANSACTIONS),
    Mutant("pool-wait-is-timed", "an attempt times out while it waits for one of our own connections",
           "store/connections.py", "    attempt.pause()\n", "", _TRANSACTIONS),
    Mutant("pg-not-reset", "what a transaction did to its session is there for the next one",
           f"{POSTGRES}.py", "                if use.is_lent:\n", "                if use is Use.OURS:\n",
           _TRANSACTIONS),
    Mutant("pg-hook-on-the-same-chain", "all outcomes of a worker wait for a slow hook",
           "hook.py", 'yield f"{self._session()}/hook-{number}"', "yield str(self._session())", _TRANSACTIONS),
    Mutant("pg-key-wait-fails", "who waits for a key fails",
           f"{POSTGRES}.py", "if isinstance(error.__cause__, asyncpg.LockNotAvailableError):",
           "if not error.__cause__:", _TRANSACTIONS),
    Mutant("pg-lost-transaction-stays", "a worker that stands still keeps the key of its event",
           f"{POSTGRES}/end_lost.sql", "pg_terminate_backend(l.pid)", "l.pid", _TRANSACTIONS),
    Mutant("fork-shares", "a forked child uses the thread and the connections of its parent",
           "portal.py", "os.register_at_fork(", "dict(", "tests/publish/test_sync.py"),
    Mutant("pg-purge-live", "a purge removes what has not ended",
           f"{POSTGRES}/purge_ended.sql",
           "o.status in ('delivered', 'cancelled') and o.ended_at < :before::timestamptz",
           "o.status <> 'failed' and coalesce(o.ended_at, o.created_at) < :before::timestamptz", _TOGETHER),
    Mutant("import-drops-steps", "a replay in another database runs finished steps again",
           "letters.py", "            if finished:\n", "            if finished is None:\n",
           "tests/operate/test_repair.py"),
    Mutant("member-outside", "a member whose retry key is live outside its batch is not counted, and nobody is told",
           "store/rows.py", "if str(in_batch[key]) != str(event.batch_id):", "if not by_key:",
           "tests/batch/test_life.py"),
    Mutant("handled-holds-key", "an event that is ended because its effect is there goes on holding up its key",
           "replay.py", "            await _leave(tx, rows)\n            if row", "            if row",
           "tests/stores/test_replay.py"),
    Mutant("charge-again", "a replay from the start runs finished steps again that nobody has undone",
           "steps.py", "return not self.forgotten and self.compensation_id is not None",
           "return self.forgotten and self.compensation_id is not None", "tests/steps/test_compensation.py"),
    Mutant("purge-half-a-saga", "a failed compensation is removed while its event waits for it",
           "store/sqlite/purge_failed.sql", "where s.compensation_id = o.id)", "where s.compensation_id = o.id and 0)",
           WIDER),
    Mutant("pg-purge-half-a-saga", "a failed compensation is removed while its event waits for it",
           f"{POSTGRES}/purge_failed.sql", "where s.compensation_id = o.id offset 0)",
           "where s.compensation_id = o.id and false offset 0)", _KEPT),
    Mutant("purge-before-outcome", "a redrive finds that an event is gone whose outcome it had not counted",
           "store/sqlite/purge_ended.sql", "where i.event_id = o.id and i.state = 'released')",
           "where i.event_id = o.id and i.state = 'released' and 0)", WIDER),
    Mutant("purge-forgets-keys", "the key of a handled event is forgotten while a dead letter with it can be replayed",
           "store/sqlite/purge_handled.sql", "o.idempotency_key <> o.id\n            and o.status in (",
           "o.idempotency_key <> o.id\n            and 0 and o.status in (", _KEPT),
    Mutant("pg-purge-forgets-keys", "the key of a handled event is forgotten while its own event can run",
           f"{POSTGRES}/purge_handled.sql", "where o.id = case when", "where false and o.id = case when", _KEPT),
    Mutant("pg-purge-by-the-machine", "retention goes by the clock of the machine",
           "store/postgres.py", 'now = self._now() or await connection.fetchval("select clock_timestamp()")',
           "now = self.clock.now()", _KEPT),
    Mutant("leap-is-age", "a clock that was wrong for a moment makes everything old",
           "store/writer.py", "if wall < until + LEAP_BELIEVED_SECONDS * 1_000_000:", "if False:", _KEPT),
    Mutant("leap-doubted-for-ever", "after a pause nothing is removed any more",
           "store/writer.py", "if wall < until + LEAP_BELIEVED_SECONDS * 1_000_000:", "if until:", _KEPT),
    Mutant("deadline-by-the-machine", "a deadline given in the caller's transaction begins when the machine says",
           "store/sqlite/publish.sql", "max(:now, (select highest from redrive_clock)) + :deadline",
           ":now + :deadline", "tests/stores/test_time.py"),
    Mutant("row-unguarded", "a row whose payload cannot be read breaks every list",
           "store/base.py", "except (ValueError, TypeError, AttributeError, OverflowError, RecursionError) as error:",
           "except AttributeError as error:", "tests/lab/test_rows.py"),
    Mutant("mask-unguarded", "a payload that cannot be read ends the worker that reports its failure",
           "mask.py", "            with suppress(PayloadInvalid):\n                found |=",
           "            with suppress(AttributeError):\n                found |=", "tests/lab/test_rows.py"),
    Mutant("odd-text-stops-the-writer", "text that is not UTF-8 fails every claim",
           "store/writer.py", "if is_undecodable(error) and not self._has_met_odd_text:", "if self._has_met_odd_text:",
           "tests/lab/test_rows.py"),
    Mutant("pg-instants-unguarded", "an instant that Python does not have fails every claim",
           f"{POSTGRES}/turn.sql", "least(greatest(o.created_at, '0001-01-02 00:00:00+00'), '9999-12-30 00:00:00+00')",
           "o.created_at", "tests/lab/test_rows.py"),
    Mutant("pg-publish-unchecked", "SQL publishes payloads that Python refuses",
           f"{POSTGRES}/migrations/0016_hardening.sql", "    perform redrive.check_json(\n        p_payload,",
           "    perform redrive.check_json(\n        '1',", "tests/stores/test_sql_functions.py"),
    Mutant("shadow-commits", "a shadow commits through a connection of the handler's own",
           "caller.py", "        trial.refused.append(message)\n        raise Refused(message)", "        return",
           "tests/redrive/test_edit_and_shadow.py"),
    Mutant("harness-writes-elsewhere", "a harness in memory writes into the real database",
           "store/sqlite.py", "if self._memory and connection is not self.writer.connection:",
           "if connection is None:", "tests/testing/test_harness.py"),
    Mutant("key-twice-kept", "of a key that an object has twice the last is kept, and nobody is told",
           "payload.py", "    if len(found) == len(pairs):\n", "    if len(found) <= len(pairs):\n",
           "tests/words/test_payload.py"),
    Mutant("number-rounded", "a number that a double does not hold is rounded, and nobody is told",
           "payload.py", "if is_double and Decimal", "if is_double or Decimal",
           "tests/words/test_payload.py"),
    Mutant("leaderless-is-missing", "a NATS stream that has no leader for a moment is taken for a missing one",
           "transport/nats.py", "await self._unheard(line, message.topic, is_again=is_again)",
           "raise TopicMissing(message.topic) from None", "tests/transport/test_nats_cluster.py"),
    Mutant("latest-every-time", "a group that starts with the latest message does so whenever an offset is missing",
           "transport/kafka.py", '"auto.offset.reset": "earliest",', '"auto.offset.reset": "latest",',
           "tests/transport/test_kafka_latest.py"),
    Mutant("beginning-not-kept", "a group whose offsets are lost begins with the latest message once more",
           "transport/kafka.py", "(beginning if beginnings is None else await", "(beginning if topic_id else await",
           "tests/transport/test_kafka_latest.py"),
    Mutant("reuse-not-noticed", "a message that is dropped for an id used before counts as a repetition",
           "transport/intake.py", "in stood and stood[key] != _place(each.received)", "in stood and key not in stood",
           "tests/transport/test_intake.py"),
    Mutant("bad-options-stop-intake", "a parser that returns bad options stops its intake for ever",
           "transport/intake.py", "        except Exception as error:  # whatever is wrong with a message, or",
           "        except MemoryError as error:  # whatever is wrong with a message, or",
           "tests/transport/test_intake.py"),
    Mutant("claim-not-asked", "evidence: duplicate requests call the case API at the same time",
           "apps/evidence/attach.py", "or (is_claimed and str(holder) != each.event_id):", "or False:",
           "tests/apps/evidence/test_claims.py"),
    Mutant("notice-not-forced", "evidence: no notice is ever sent when the case API was never there",
           "apps/evidence/notices.py", "            if notice == N1:", "            if notice == LOOK:",
           "tests/apps/evidence/test_outage.py"),
    Mutant("lost-pull-waited-for", "an intake waits for ever for the answer to a request that was lost with a leader",
           "transport/nats.py", "if self._owed > 0 and self._line.time() - self._heard_at > _ANSWER_SECONDS:",
           "if self._owed > 0 and self._line.time() - self._heard_at > 3_600:", "tests/transport/test_nats_cluster.py"),
]  # fmt: skip


def hunt(mutant: Mutant, seeds: int = SEEDS) -> Caught:
    """Put it into a copy of the source, and see whether its experiment notices."""
    with tempfile.TemporaryDirectory(prefix="redrive-mutant-") as folder:
        source = Path(folder) / "src"
        shutil.copytree(ROOT / "src", source, ignore=shutil.ignore_patterns("__pycache__"))
        _change(source / "redrive" / mutant.file, mutant)
        environment = {name: value for name, value in os.environ.items() if name != warm.DOOR}  # that one is sound
        environment |= {"PYTHONPATH": f"{source}{os.pathsep}{ROOT}", "REDRIVE_LAB_RUNS": f"{folder}/runs.jsonl"}
        began = time.monotonic()
        ran = subprocess.run(
            _command(mutant, seeds), cwd=ROOT, capture_output=True, text=True, timeout=_LEFT_ALONE, check=False,
            env=environment,
        )  # fmt: skip
        seconds = round(time.monotonic() - began, 1)
    said = ran.stdout + ran.stderr
    number, violation = _HOW_MANY.search(said), _VIOLATIONS.search(said)
    by_test = mutant.caught_by.startswith("tests/")
    as_what = violation[1] if violation else "a failed test" if by_test and ran.returncode else ""
    # A broken import would fail every experiment: only a violation or a failed test counts.
    is_caught = ran.returncode == 1 and (by_test or violation is not None)
    after = int(number[1]) if number else 1
    return Caught(mutant.name, mutant.breaks, mutant.caught_by, as_what, after, seconds, is_caught)


def _change(file: Path, mutant: Mutant) -> None:
    text = file.read_text(encoding="utf-8")
    if text.count(mutant.old) != 1:
        raise LookupError(
            f"{mutant.name}: {mutant.file} has {text.count(mutant.old)} places like {mutant.old!r}, not one"
        )
    file.write_text(text.replace(mutant.old, mutant.new), encoding="utf-8")


def _command(mutant: Mutant, seeds: int) -> list[str]:
    if mutant.caught_by in ("simulation", WIDER, REDRIVEN):
        world = mutant.caught_by.split(", ")[1:]
        return [sys.executable, "-m", "tests.lab.simulation", *world, "hunt", "0", str(seeds)]
    if mutant.caught_by == "crash points":
        return [sys.executable, "-m", "tests.lab.simulation", "crashes", "25"]
    # Those of one store need only its tests, and what compares both.
    other = "sqlite" if mutant.file.startswith(POSTGRES) else "postgres"
    options = ["-q", "-x", "-p", "no:cacheprovider", "-k", f"not {other}"]
    return [sys.executable, "-m", "pytest", *options, *mutant.caught_by.split()]


def table(results: Sequence[Caught]) -> str:
    width = max(len(each.name) for each in MUTANTS)
    return "\n".join(
        f"{each.name:<{width}}  {'caught' if each.is_caught else 'ALIVE'}  {each.seconds:6.1f} s  "
        f"{each.caught_by}, {each.as_what or 'nothing'} after {each.after}"
        for each in results
    )


def main(names: Sequence[str]) -> int:
    results = []
    for mutant in MUTANTS:
        if not names or mutant.name in names:
            results.append(hunt(mutant))
            print(table(results[-1:]), flush=True)
    alive = [each.name for each in results if not each.is_caught]
    print(f"{len(results) - len(alive)} of {len(results)} caught" + (f"; alive: {', '.join(alive)}" if alive else ""))
    if not names:
        RESULTS.write_text(json.dumps([asdict(each) for each in results], indent=1) + "\n", encoding="utf-8")
    return bool(alive)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
