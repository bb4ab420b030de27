-- End lost: end transactions of attempts whose lease is gone. They could not commit, and would keep their key and their
-- row from whoever has the event now: their worker stands still, or its machine was cut off.
-- Guard: only transactions that carry the name of a lease, whose event has a later fence or whose session has ended.
-- They are found before any is ended: in one query the function could be called for every connection of the server.
with lost as materialized (
    select a.pid, o.id
    from pg_stat_activity a
    join redrive.outbox o
      on o.id = case when a.application_name ~ '^redrive lease [0-9a-f-]{36} [0-9]+$'
                     then split_part(a.application_name, ' ', 3)::uuid end
    where a.datname = current_database() and a.pid <> pg_backend_pid()
      and (o.fence <> split_part(a.application_name, ' ', 4)::bigint
           or (o.status = 'in_flight' and exists (
               select from redrive.session s where s.id = o.session_id and s.ended_at is not null)))
)
select l.id, pg_terminate_backend(l.pid) from lost l
