-- Purge findings: forget what was healed long ago, a bounded number at a time. What is open or ignored stays.
delete from redrive_finding where id in (
    select id from redrive_finding where state = 'healed' and healed_at < :before order by healed_at limit :limit)
