-- Groups: what stands in quarantine, by cause; the latest first, after one of them if that is said.
select * from redrive.failure_group
where (:all::boolean or dead_count > 0) and (:state::text is null or state = :state::text)
  and (:seen_before::timestamptz is null or last_seen_at < :seen_before::timestamptz
       or (last_seen_at = :seen_before::timestamptz and fingerprint > :after::text))
order by last_seen_at desc, fingerprint limit :limit
