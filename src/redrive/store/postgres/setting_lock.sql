-- Lock: whoever wants to change a setting by what it was goes alone; there may be no row yet that could be locked.
select 1 from pg_advisory_xact_lock(hashtextextended('redrive.setting:' || :name::text, 0))
