-- Due by time: how many pending events come due within each span from now on, lane by lane, each counted up to a cap.
select s.key as number, coalesce(sum(
    (select count(*) from (select 1 from redrive_outbox o where o.status = 'pending' and o.queue = l.queue
                           and o.priority = l.priority and o.generation = l.generation
                           and o.due_at >= :now + cast(s.value * 1e6 as integer)
                           and o.due_at < :now + cast(json_extract(:bounds, '$[' || (s.key + 1) || ']') * 1e6 as integer)
                           limit :cap))), 0) as n
from json_each(:bounds) s left join redrive_waiting_lane l
where s.key < json_array_length(:bounds) - 1
group by s.key order by s.key
