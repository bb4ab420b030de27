-- New: make sure that a dependency has a row; the one that is there stays as it is.
insert into redrive_dependency (name, kind) values (:name, :kind) on conflict (name) do nothing
