-- Plan: write down what was asked. The members follow a chunk at a time; until all are there it cannot be started.
insert into redrive_redrive (id, state, selection, sentence, planned_by, planned_at, expires_at)
values (:id, 'planning', :selection, :sentence, :by, :now, :now + cast(:keep * 1000000 as integer))
returning planned_at
