-- Delivered rate: how many events ended within the last seconds, of the latest so many, and since when.
select count(*) as ended,
       extract(epoch from coalesce(:now::timestamptz, clock_timestamp()) - min(greatest(x.ended_at, 'epoch')))::float8 as seconds
from (select ended_at from redrive.outbox
      where status in ('delivered', 'cancelled')
        and ended_at > coalesce(:now::timestamptz, clock_timestamp()) - make_interval(secs => :window::float8)
      order by ended_at desc limit :looked_at) x
