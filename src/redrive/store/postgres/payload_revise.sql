-- Revise: keep the payload as it was, and put the edited one in its place, for a dead letter about to be replayed.
with moment as materialized (
    select redrive.moment(:now::timestamptz) as now
), kept as (
    insert into redrive.payload_revision (event_id, revision, payload, replaced_by, reason, replaced_at)
    select o.id, (select count(*) from redrive.payload_revision v where v.event_id = o.id) + 1, o.payload, :by::text,
           :reason::text, m.now
    from redrive.outbox o, moment m where o.id = :id::uuid and o.status = 'failed' and o.deleted_at is null
      and (:cycle::int is null or o.cycle = :cycle::int)
    for update of o  -- of two edits at once the second finds that it was replayed
    returning event_id, revision
), changed as (
    update redrive.outbox o set payload = (:payload::text)::json where o.id = any(array(select event_id from kept))
    returning o.id, o.source
), grouped as materialized (  -- before the trail: everybody takes these locks in this order
    select g.fingerprint from redrive.failure_group g
    where g.fingerprint in (select o.fingerprint from redrive.outbox o where o.id = :id::uuid) for update
), trailed as (
    select redrive.write_trail('operator', (select now from moment), array_agg(c.id), array_agg('edited'::text),
        array_agg(c.source), array_agg(:by::text),
        array_agg(json_build_object('reason', :reason::text, 'revision', k.revision)::text))
    from changed c join kept k on k.event_id = c.id, (select count(*) from grouped) g
)
select c.id from changed c, trailed
