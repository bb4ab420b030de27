-- Look now: at a batch that was closed, and not when the transaction commits. Who writes to the trail after it has all
-- locks by then: those who end members have theirs in the same order.
set constraints redrive.batch_look immediate
