-- Answer keep: whoever calls again with this key is told the same.
update redrive.answer set status = :status::int, headers = :headers::text, body = :body::text
where caller = :caller::text and key = :key::text and request = :request::text
