-- Lock: one writes findings of a reconciler at a time. Nothing to do here, a transaction that writes is alone.
select 1 as locked
