-- Report: the members of a redrive by group, state and reason.
select fingerprint, state, reason, count(*) as n from redrive_redrive_item
where redrive_id = :id group by fingerprint, state, reason order by n desc
