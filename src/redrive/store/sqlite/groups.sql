-- Groups: what stands in quarantine, by cause; the latest first.
select * from redrive_failure_group
where (:all or dead_count > 0) and (:state is null or state = :state)
order by last_seen_at desc, fingerprint limit :limit
