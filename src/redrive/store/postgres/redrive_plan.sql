-- Plan: write down what was asked; the members follow in the same transaction.
insert into redrive.redrive (id, state, selection, sentence, planned_by, planned_at, expires_at)
values (:id::uuid, 'planned', :selection::text, :sentence::text, :by::text, coalesce(:now::timestamptz, clock_timestamp()), coalesce(:now::timestamptz, clock_timestamp()) + make_interval(secs => :keep::float8))
