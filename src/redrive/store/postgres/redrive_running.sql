-- Running: the redrives that can move, some of them when there are many: those with members to release, those with
-- members that ended (surely), those with nothing left (surely). By chance, so that none is passed over for ever; the
-- dice are the caller's, two of them: with one, what lies late in one list and early in the other would never be met.
-- Of more than 5,000 members under way a part is looked at each time, by chance, too: 100,000 took two seconds.
with movable as materialized (
    select id, bool_or(surely) as surely from (
        select r.id, not exists (
            select from redrive.redrive_item i where i.redrive_id = r.id and i.state = 'ready') as surely
        from redrive.redrive r
        where r.state = 'running'
          and (exists (select from redrive.redrive_item i where i.redrive_id = r.id and i.state = 'ready')
               or not exists (select from redrive.redrive_item i where i.redrive_id = r.id and i.state = 'released'))
        union all
        select i.redrive_id, true
        from (select x.redrive_id, x.event_id, x.cycle from redrive.redrive_item x where x.state = 'released'
              order by x.redrive_id, x.position limit 5000 offset (
                  select case when count(*) <= 5000 then 0
                              else greatest(0, floor(:part::float8 * (count(*) + 5000)) - 5000) end
                  from redrive.redrive_item where state = 'released')) i
        left join lateral (  -- by the key of each: a plan for many members must not read the whole outbox
            select x.id, x.status, x.cycle from redrive.outbox x where x.id = i.event_id offset 0) o on true
        where o.id is null or o.status in ('delivered', 'failed', 'cancelled') or o.cycle > i.cycle + 1
    ) m group by id
)
select id, surely from movable
order by id limit 100 offset (
    select case when count(*) <= 100 then 0 else greatest(0, floor(:turn::float8 * (count(*) + 100)) - 100) end
    from movable)
