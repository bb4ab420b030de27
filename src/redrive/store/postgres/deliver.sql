-- Deliver: the attempt succeeded, in the handler's own transaction. The next of its ordering key may go with its commit.
-- Guard: only by its fence, and only while the event is in flight.
with delivered as (
    update redrive.outbox set status = 'delivered', ended_at = coalesce(:now::timestamptz, clock_timestamp())
    where id = :id::uuid and fence = :fence::bigint and status = 'in_flight'
    returning id, target, ordering_key
)
select d.id, redrive.promote(array[d.target], array[d.ordering_key], :now::timestamptz, false) from delivered d
