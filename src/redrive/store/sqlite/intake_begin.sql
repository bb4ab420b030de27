-- Intake begin: keep where a consumer group begins. Guard: the first word counts, unless the topic was made anew since.
insert into redrive_intake_beginning as b (name, topic_id, positions, begun_at)
values (:name, :topic_id, :positions, :now)
on conflict (name) do update set topic_id = excluded.topic_id, positions = excluded.positions, begun_at = excluded.begun_at
where b.topic_id <> excluded.topic_id
