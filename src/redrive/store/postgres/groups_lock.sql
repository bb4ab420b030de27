-- Lock: nobody may count while the groups are counted anew; what was counted before is seen by the next statement.
lock table redrive.failure_group in share row exclusive mode
