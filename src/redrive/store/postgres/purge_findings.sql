-- Purge findings: forget what was healed long ago, a bounded number at a time. What is open or ignored stays.
delete from redrive.finding where id = any(array(
    select id from redrive.finding where state = 'healed' and healed_at < :before::timestamptz
    order by healed_at limit :limit for update skip locked))
