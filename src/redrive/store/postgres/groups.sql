-- Groups: what stands in quarantine, by cause; the latest first.
select * from redrive.failure_group
where (:all::boolean or dead_count > 0) and (:state::text is null or state = :state::text)
order by last_seen_at desc, fingerprint limit :limit
