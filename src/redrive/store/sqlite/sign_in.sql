-- Sign in: a browser has shown a token, and shows this from now on.
insert into redrive_sign_in (hash, token_id, began_at, expires_at)
select :hash, id, :now, min(expires_at, :now + cast(:seconds * 1000000 as integer))
from redrive_operator_token where id = :token_id
