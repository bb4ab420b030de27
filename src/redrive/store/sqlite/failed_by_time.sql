-- Failed by time: how many dead letters of a group, or of all, lie between one id and the next; ids begin with the time
-- of publishing. Each span is counted up to a cap, from the index alone.
select f.value as fingerprint, l.key as number,
       (select count(*) from (select 1 from redrive_outbox o where o.status = 'failed' and o.fingerprint = f.value
                              and o.id >= l.value and o.id < json_extract(:bounds, '$[' || (l.key + 1) || ']')
                              limit :cap)) as n
from json_each(:fingerprints) f join json_each(:bounds) l on l.key < json_array_length(:bounds) - 1
where f.value is not null
union all
select null, l.key,
       (select count(*) from (select 1 from redrive_outbox o where o.status = 'failed'
                              and o.id >= l.value and o.id < json_extract(:bounds, '$[' || (l.key + 1) || ']')
                              limit :cap))
from json_each(:bounds) l where l.key < json_array_length(:bounds) - 1 and json_array_length(:fingerprints) = 0
