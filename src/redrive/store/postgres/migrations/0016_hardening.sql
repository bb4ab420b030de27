-- Hardening: changes that an outside review of version 15 asked for. Each section belongs to one area and can be read alone.
-- Like every migration it only adds: workers of version 15 go on beside it.

-- Redrives: stages, order and gates.

-- Keys: the order of a key, and when it is free.

-- Claims and settles: a row that somebody else has locked.

-- Sessions: work of a process that is gone.

-- Retention: rows that are still needed.

-- Publishing by SQL: the limits of publish.

-- Dependencies, failures and classes.

select 1;  -- a driver refuses a script without a statement; remove this when a section above has one
