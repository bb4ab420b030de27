-- Answer keep: whoever calls again with this key is told the same.
update redrive_answer set status = :status, headers = :headers, body = :body
where caller = :caller and key = :key and request = :request
