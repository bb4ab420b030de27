-- Close a batch, in whatever transaction this runs; answers nothing when it was closed. At its commit somebody looks
-- whether a notice is due.
select :id::uuid as id where redrive.batch_close(:id::uuid, :by::text, :now::timestamptz)
