-- Groups of a redrive: how many members each has, written down once, when it is planned.
insert into redrive_redrive_group (fingerprint, redrive_id, members)
select f.value, :id, m.value from json_each(:fingerprints) f join json_each(:members) m on m.key = f.key
