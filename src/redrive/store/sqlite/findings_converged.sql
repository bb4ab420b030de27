-- Converged: something was done about these. With `agree` somebody has looked and both sides agree: they are healed.
update redrive_finding
set converged_at = :now, state = case when :agree then 'healed' else state end,
    healed_at = case when :agree then :now else healed_at end
where id in (select value from json_each(:ids)) and state = 'open'
