-- Look at some batches: send the first notice where no member is untried, the final one where none is live; with force,
-- anyhow. For people who force one and for repair: what ends a member looks by itself.
-- Differs from SQLite: the functions see to both kinds, so nothing is left to do for the second one.
select i.id from unnest(:ids::uuid[]) as i(id)
where :kind::text = 'first'
  and case when :force::boolean then redrive.batch_force(i.id, :by::text, :now::timestamptz)
           else redrive.batch_decide(i.id, false, :now::timestamptz) end
