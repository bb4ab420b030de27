-- Group: by its fingerprint or a beginning of it.
select * from redrive_failure_group where fingerprint = :fingerprint
   or substr(fingerprint, 3, length(:fingerprint)) = :fingerprint
order by fingerprint limit 2
