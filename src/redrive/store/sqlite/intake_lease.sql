-- Intake lease: take it when it is free, renew it when it is ours; no row: another has it.
insert into redrive_intake_lease as l (name, holder, until) values (:name, :holder, :now + cast(:seconds * 1000000 as integer))
on conflict (name) do update set holder = excluded.holder, until = excluded.until
where l.holder = excluded.holder or l.until < :now
returning name
