-- Name lease: name this transaction after the lease that it settles, until it ends (see end_lost).
select set_config('application_name', 'redrive lease ' || :id::uuid || ' ' || :fence::bigint, true)
