-- Look at some batches: send the first notice where no member is untried, the final one where none is live; with force,
-- both anyhow. For people who force one and for repair: what ends a member looks by itself.
select i.id from unnest(:ids::uuid[]) as i(id)
where case when :force::boolean then redrive.batch_force(i.id, :by::text, :now::timestamptz)
           else redrive.batch_decide(i.id, false, :now::timestamptz) end
