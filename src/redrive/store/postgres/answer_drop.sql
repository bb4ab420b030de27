-- Answer drop: nothing was done, so the key is free again.
delete from redrive.answer
where caller = :caller::text and key = :key::text and request = :request::text and status is null
