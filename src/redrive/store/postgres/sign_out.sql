-- Sign out: this browser shows nothing any more.
delete from redrive.sign_in where hash = :hash::text
