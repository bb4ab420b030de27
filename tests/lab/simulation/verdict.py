"""What must be true of a seed when it is over; the rules of every step have been kept by the file itself."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from tests.lab import checker
from tests.lab.simulation.scenario import MAX_ATTEMPTS

if TYPE_CHECKING:
    from tests.lab.simulation.world import World


def judge(world: World) -> None:
    """Read the file, and add what is wrong to what was found."""
    query = world.disk.query
    for name, said in query("select name, said from lab_violation"):
        world.found.add(name, said)
    for (name,) in query("select name from lab_reached"):
        world.reached[name] += 1
    removed = {event_id for (event_id,) in query("select id from lab_removed")}
    said = [line for line in world.said if removed.isdisjoint(line["ids"])]
    whole = checker.check(world.disk.url, lines=said, max_attempts=MAX_ATTEMPTS, now=world.disk.now)
    world.found.violations.update(whole.violations)
    for name, said in whole.first.items():
        world.found.first.setdefault(name, said)
    _judge_publishes(world)
    _judge_waiting(world)
    _judge_hooks(world)
    _judge_batches(world)
    _judge_redrives(world)
    _judge_groups(world)


def _judge_publishes(world: World) -> None:
    rows = world.disk.query(
        "select key, count(*) from (select idempotency_key as key from redrive_outbox"
        " union all select key from lab_removed) group by 1"
    )
    there = dict(rows)
    # A schedule that was removed and is declared anew has no memory of its ticks; at the end all are removed.
    forgotten = world.disk.query(
        "select 1 from redrive_trail where kind = 'schedule-removed' and detail not like '%the end%' limit 1"
    )
    for intent in world.intents:
        key = intent.options["idempotency_key"]
        if intent.answer == "fail" and there.get(key):
            world.found.add("phantom", f"{key} exists, though its publish failed")
        if intent.answer == "ok" and not there.get(key):
            world.found.add("lost", f"{key} was acknowledged and is gone")
    for key, number in there.items():
        is_tick = key.startswith("schedule:") and not forgotten
        if number > 1 and (key.endswith(".child") or is_tick):
            world.found.add("duplicate", f"{key} was published {number} times by its parent or its schedule")


def _judge_waiting(world: World) -> None:
    """Whatever waits has somebody to wait for."""
    for event_id, key in world.disk.query(
        "select o.id, o.ordering_key from redrive_outbox o where o.status = 'blocked' and o.blocked_on is null"
        " and not exists (select 1 from redrive_key_line l where l.target = o.target"
        " and l.ordering_key = o.ordering_key and l.status = 'failed' and l.seq < o.seq)"
    ):
        world.found.add("stuck", f"{event_id} waits in key {key} for nobody")
    for event_id, name in world.disk.query(
        "select id, blocked_on from redrive_outbox where status = 'blocked' and blocked_on is not null"
    ):
        world.found.add("stuck", f"{event_id} still waits for {name}")


def _judge_hooks(world: World) -> None:
    """A hook's note is committed with the outcome it is about, or neither is."""
    told = Counter(
        world.disk.query("select event_id, kind from lab_note where event_id not in (select id from lab_removed)")
    )
    written = Counter(
        world.disk.query(
            "select t.event_id, t.kind from redrive_trail t join redrive_outbox o on o.id = t.event_id"
            " where o.target = 'lab.hooked' and t.kind in ('dead-lettered', 'retry-scheduled')"
        )
    )
    for (event_id, kind), number in (told - written).items() | (written - told).items():
        world.found.add("evidence", f"{event_id}: {kind} differs by {number} between the hook's notes and the trail")


def _judge_batches(world: World) -> None:
    """Each notice once, and when it is true."""
    for batch_id, first, final in world.disk.query("select id, first_at, final_at from redrive_batch"):
        for kind, at in (("first", first), ("final", final)):
            ((number,),) = world.disk.query(
                "select (select count(*) from redrive_outbox where idempotency_key = ?1)"
                " + (select count(*) from lab_removed where key = ?1)",
                (f"{kind}:{batch_id}",),
            )
            if number != (at is not None):
                world.found.add("notice error", f"batch {batch_id} has {number} {kind} notices")
    for batch_id, forced in world.disk.query(
        "select b.id, b.forced from redrive_batch b where b.closed_at is not null and b.final_at is null and not exists"
        " (select 1 from redrive_outbox o where o.batch_id = b.id and o.ended_at is null)"
    ):
        world.found.add("notice error", f"batch {batch_id} has ended and says nothing ({forced})")
    for (batch_id,) in world.disk.query("select id from redrive_batch where forced and deadline_at is null"):
        world.found.add("notice error", f"batch {batch_id} was forced, and nobody has done that")


def _judge_redrives(world: World) -> None:
    """The counters say what became of the members, and every release is on the trail."""
    for row in world.disk.query(
        "select r.id, r.state, r.released, (select count(*) from redrive_redrive_item i where i.redrive_id = r.id"
        " and i.released_at is not null) as went, r.id in (select id from lab_removed) as is_cut"
        " from redrive_redrive r where r.started_at is not null"
    ):
        if row[2] != row[3] and not row[4]:
            world.found.add("released twice", f"redrive {row[0]} ({row[1]}) counts {row[2]} releases, {row[3]} went")
        if row[1] == "running":
            world.found.add("stuck", f"redrive {row[0]} still runs")


def _judge_groups(world: World) -> None:
    for row in world.disk.query(
        "select g.fingerprint, g.dead_count, count(o.id) from redrive_failure_group g left join redrive_outbox o"
        " on o.fingerprint = g.fingerprint and o.status = 'failed' and o.deleted_at is null group by 1, 2"
        " having g.dead_count <> count(o.id)"
    ):
        world.found.add("miscounted", f"group {row[0]} counts {row[1]} dead letters and has {row[2]}")
