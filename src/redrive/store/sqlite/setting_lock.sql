-- Lock: nothing to do, a transaction that writes is alone.
select 1
