-- Held: which of these events cannot be settled now, because somebody else's transaction holds a row or a name that their
-- end changes. The function locks the others until the end of this transaction.
select unnest(redrive.held(:ids::uuid[], :prints::text[]))
