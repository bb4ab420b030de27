-- Groups: what stands in quarantine, by cause; the latest first, after one of them if that is said.
select * from redrive_failure_group
where (:all or dead_count > 0) and (:state is null or state = :state)
  and (:seen_before is null or last_seen_at < :seen_before or (last_seen_at = :seen_before and fingerprint > :after))
order by last_seen_at desc, fingerprint limit :limit
