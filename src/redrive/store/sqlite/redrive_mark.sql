-- Mark: what became of a picked member.
update redrive_redrive_item
set state = case when :why is null then 'released' else 'skipped' end, reason = :why, stage = :stage,
    released_at = case when :why is null then :now end, ended_at = case when :why is not null then :now end
where redrive_id = :id and position = :position
