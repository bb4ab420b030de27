-- Eligibility: how many members may go, and why the others may not.
select state, reason, count(*) as n from redrive.redrive_item where redrive_id = :id::uuid group by state, reason order by n desc
