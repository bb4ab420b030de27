-- Sign out: this browser shows nothing any more.
delete from redrive_sign_in where hash = :hash
