-- Count: bring the counters of a redrive up by what a tick has seen (a part of outcomes and release on PostgreSQL).
update redrive_redrive
set released = released + :released, delivered = delivered + :delivered, failed_same = failed_same + :failed_same,
    failed_other = failed_other + :failed_other, skipped = skipped + :skipped
where id = :id
