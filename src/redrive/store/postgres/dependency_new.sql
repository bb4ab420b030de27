-- New: make sure that a dependency has a row; the one that is there stays as it is.
insert into redrive.dependency (name, kind) values (:name::text, :kind::text) on conflict (name) do nothing
