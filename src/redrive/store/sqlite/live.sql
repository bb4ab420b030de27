-- Live: the next events of a set that have not ended, in the order of their ids.
-- What was published after `until` was not in the set when it was shown, and is left out.
select id from redrive_outbox
where status in ('pending', 'in_flight', 'blocked') and id > :after and created_at <= :until {where}
order by id limit :limit
