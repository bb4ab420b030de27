-- Groups of a redrive: how many members each has, written down once, when it is planned.
insert into redrive.redrive_group (fingerprint, redrive_id, members)
select g.fingerprint, :id::uuid, g.members from unnest(:fingerprints::text[], :members::bigint[]) as g(fingerprint, members)
