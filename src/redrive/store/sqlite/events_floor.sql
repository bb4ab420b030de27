-- Floor: the last row that a page may walk through to. Without one there are fewer rows than that.
select id from redrive_outbox where true {where} order by id desc limit 1 offset :walked - 1
