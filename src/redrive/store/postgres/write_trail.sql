-- Write trail: entries of their own, for what is not a change of one event.
select redrive.write_trail(:chain::text, coalesce(:now::timestamptz, clock_timestamp()), :event_ids::uuid[], :kinds::text[],
    :sources::text[], :actors::text[], :details::text[])
