-- Delivered rate: how many events ended within the last seconds, of the latest so many, and since when.
select count(*) as ended, (:now - min(ended_at)) / 1e6 as seconds
from (select ended_at from redrive_outbox indexed by redrive_outbox_ended
      where status in ('delivered', 'cancelled') and ended_at > :now - :window * 1e6
      order by ended_at desc limit :looked_at)
