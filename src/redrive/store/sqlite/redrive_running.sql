-- Running: the redrives that can move, some of them when there are many: those with members to release, those with
-- members that ended (surely), those with nothing left (surely). By chance, so that none is passed over for ever; the
-- dice are the caller's, two of them: with one, what lies late in one list and early in the other would never be met.
-- Of more than 5,000 members under way a part is looked at each time, by chance, too: 100,000 took a second.
with movable as materialized (
    select id, max(surely) as surely from (
        select r.id, not exists (
            select 1 from redrive_redrive_item i indexed by redrive_redrive_item_ready
            where i.redrive_id = r.id and i.state = 'ready') as surely
        from redrive_redrive r
        where r.state = 'running'
          and (exists (select 1 from redrive_redrive_item i indexed by redrive_redrive_item_ready
                       where i.redrive_id = r.id and i.state = 'ready')
               or not exists (select 1 from redrive_redrive_item i indexed by redrive_redrive_item_released
                              where i.redrive_id = r.id and i.state = 'released'))
        union all
        select i.redrive_id, 1
        from (select x.redrive_id, x.position from redrive_redrive_item x where x.state = 'released'
              order by x.redrive_id, x.position limit 5000 offset (
                  select case when count(*) <= 5000 then 0 else max(0, cast(:part * (count(*) + 5000) as int) - 5000) end
                  from redrive_redrive_item where state = 'released')) p
        join redrive_redrive_item i on i.redrive_id = p.redrive_id and i.position = p.position
        left join redrive_outbox o on o.id = i.event_id
        where o.id is null or o.status in ('delivered', 'failed', 'cancelled') or o.cycle > i.cycle + 1
    ) group by id
)
select id, surely from movable
order by id limit 100 offset (
    select case when count(*) <= 100 then 0 else max(0, cast(:turn * (count(*) + 100) as int) - 100) end from movable)
