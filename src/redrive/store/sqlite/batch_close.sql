-- Close a batch, in whatever transaction this runs; answers nothing when it was closed. Its triggers look whether a
-- notice is due.
update redrive_batch set closed_at = max(:now, (select highest from redrive_clock)), closed_by = :by
where id = :id and closed_at is null
returning id
