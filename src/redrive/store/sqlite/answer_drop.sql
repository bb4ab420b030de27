-- Answer drop: nothing was done, so the key is free again.
delete from redrive_answer where caller = :caller and key = :key and request = :request and status is null
