-- Pulse: a mark per table that differs when something in it may have changed. Whatever anybody has committed changes
-- the outbox and what is not counted here; what an operator has done, which is always on the trail, changes all of them.
-- PostgreSQL counts by itself.
with anything as (select (select data_version from pragma_data_version) || '' as mark),
     operator as (select coalesce(max(seq), 0) as seq from redrive_trail where chain = 'operator')
select 'outbox' as name,
       (select mark from anything) || '.' || coalesce((select max(seq) from redrive_outbox), 0) as mark
union all select 'trail', seq || '' from operator
union all select 'failure_group', (select seq from operator) || '.' || count(*) || '.' || coalesce(sum(dead_count), 0)
          || '.' || coalesce(max(last_seen_at), 0) from redrive_failure_group
union all select 'redrive', (select seq from operator) || '.' || count(*) || '.' || coalesce(sum(released), 0)
          || '.' || coalesce(sum(delivered + failed_same + failed_other + skipped), 0) || '.' || count(ended_at)
          from redrive_redrive
union all select 'dependency', (select seq from operator) || '.' || count(*) || '.' || coalesce(group_concat(state), '') || '.'
          || coalesce(max(counted_at), 0) || '.' || coalesce(sum(released_count), 0) from redrive_dependency
union all select 'policy_override', version || '' from redrive_policy_version
union all select 'session', count(*) || '.' || count(ended_at) from redrive_session
union all select 'batch', mark from anything
union all select 'schedule', mark from anything
union all select 'reservation', mark from anything
union all select 'reconcile_run', mark from anything
union all select 'finding', mark from anything
union all select 'transport_state', mark from anything
