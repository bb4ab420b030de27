-- Discard: hide a dead letter; the row stays and can be restored. Its trail entry stands or falls with it.
-- The next of its ordering key may go.
with moment as (
    select coalesce(:now::timestamptz, clock_timestamp()) as now
), changed as (
    update redrive.outbox o set deleted_at = m.now from moment m
    where o.id = :id::uuid and o.status = 'failed' and o.deleted_at is null
    returning o.id, o.source, o.target, o.ordering_key
), trailed as (
    select redrive.write_trail('operator', (select now from moment), array_agg(id), array_agg('discarded'::text),
        array_agg(source), array_agg(:by::text), array_agg(json_build_object('reason', :reason::text)::text))
    from changed
), grouped as (
    select redrive.count_dead(array_agg(id), -1, false, (select now from moment)) from changed
)
select c.id, redrive.promote(array[c.target], array[c.ordering_key], :now::timestamptz) from changed c, trailed, grouped
