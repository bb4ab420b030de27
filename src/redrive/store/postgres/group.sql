-- Group: by its fingerprint or a beginning of it.
select * from redrive.failure_group where fingerprint = :fingerprint::text
   or substr(fingerprint, 3, length(:fingerprint::text)) = :fingerprint::text
order by fingerprint limit 2
