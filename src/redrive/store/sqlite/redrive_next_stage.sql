-- Next stage: the gate is open. What comes after the ramp is judged by itself.
update redrive_redrive
set stage = :stage, judged_delivered = delivered, judged_same = failed_same, judged_other = failed_other
where id = :id
