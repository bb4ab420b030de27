-- Trail head: where the chain of this writer has come to.
select seq, hash from redrive_trail where chain = :chain order by seq desc limit 1
