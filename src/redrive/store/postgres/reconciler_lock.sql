-- Lock: one writes findings of a reconciler at a time; two that record the same keys would else wait for each other.
select 1 as locked from redrive.reconciler where name = :name::text for update
