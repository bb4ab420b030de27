-- Uncount: take purged dead letters out of their groups; their rows are gone already.
update redrive.failure_group g set dead_count = g.dead_count - c.n
from (select f.fingerprint, count(*) as n from unnest(:fingerprints::text[]) as f(fingerprint)
      group by f.fingerprint order by f.fingerprint) c
where g.fingerprint = c.fingerprint
