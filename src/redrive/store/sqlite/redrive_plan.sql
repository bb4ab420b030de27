-- Plan: write down what was asked; the members follow in the same transaction.
insert into redrive_redrive (id, state, selection, sentence, planned_by, planned_at, expires_at)
values (:id, 'planned', :selection, :sentence, :by, :now, :now + cast(:keep * 1000000 as integer))
