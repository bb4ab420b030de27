-- Few: whether all events of a status can be walked through for one page.
select count(*) <= :walked as few from (select 1 from redrive.outbox where status = '{status}' limit :walked + 1) as counted
