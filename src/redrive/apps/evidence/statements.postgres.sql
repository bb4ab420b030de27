-- What the evidence app asks of its tables on PostgreSQL; statements.sqlite.sql has the same names.

-- name: columns
select column_name from information_schema.columns where table_schema = 'evidence' and table_name = $1

-- name: job_add
insert into evidence.file_job (id, file_name, file_size_bytes, s3_key, upload_key, created_at, updated_at)
values ($1, $2, $3, $4, $5, $6, $6)
on conflict (upload_key) do nothing
returning id

-- name: job_by_upload
select id from evidence.file_job where upload_key = $1

-- name: job
select id, file_name, file_size_bytes, s3_key, status, error_code, error_message, row_count, artifact_count, n1_sent_at,
    n2_sent_at, n2_forced, n1_summary, n2_summary, created_at, updated_at
from evidence.file_job where id = $1

-- name: jobs
select id, file_name, file_size_bytes, s3_key, status, error_code, error_message, row_count, artifact_count, n1_sent_at,
    n2_sent_at, n2_forced, n1_summary, n2_summary, created_at, updated_at
from evidence.file_job order by id desc limit $1

-- name: job_refuse
update evidence.file_job set status = 'FAILED_VALIDATION', error_code = $2, error_message = $3, updated_at = $4::timestamptz
where id = $1 and status = 'RECEIVED'
returning id

-- name: job_expanded
update evidence.file_job set status = 'PROCESSING', row_count = $2, artifact_count = $3, updated_at = $4::timestamptz
where id = $1 and status = 'RECEIVED'
returning id

-- Rows have ids that follow from the job and the line: a second attempt at expanding finds what the first one wrote.
-- name: rows_add
insert into evidence.file_job_row
    (id, file_job_id, line, case_id, row_error_code, row_error_message, evidence_status, created_at, updated_at)
select x.id, $1::uuid, x.line, x.case_id, x.error_code, x.error_message,
    case when x.error_code is null then 'PENDING' else 'FAILED' end, $3::timestamptz, $3::timestamptz
from json_to_recordset($2::json) as x (id uuid, line int, case_id uuid, error_code text, error_message text)
on conflict (id) do nothing
returning id

-- name: artifacts_add
insert into evidence.file_job_artifact
    (id, file_job_id, file_job_row_id, case_id, file_name, file_type, file_size_bytes, s3_key, attachment_status,
     attachment_error_code, attachment_error_message, attempt_count, retry_status, created_at, updated_at)
select x.id, $1::uuid, x.row_id, x.case_id, x.file_name, x.file_type, x.file_size_bytes, x.s3_key,
    case when x.error_code is null then 'PENDING' else 'FAILED' end, x.error_code, x.error_message,
    case when x.error_code is null then 0 else 1 end,
    case when x.error_code is null then 'PENDING' else 'PERMANENT_FAILED' end, $3::timestamptz, $3::timestamptz
from json_to_recordset($2::json) as x (
    id uuid, row_id uuid, case_id uuid, file_name text, file_type text, file_size_bytes bigint, s3_key text,
    error_code text, error_message text
)

-- name: events_add
insert into evidence.file_job_event (event_id, file_job_id, file_job_row_id, event_type, published_at)
select x.event_id, $1::uuid, x.row_id, $3::text, $4::timestamptz
from json_to_recordset($2::json) as x (event_id uuid, row_id uuid)

-- Requests that this app has published or seen.
-- name: requests_known
select event_id, carried_by from evidence.file_job_event where event_id = any($1::uuid[])

-- A request of somebody else is written down when it is first seen; with Kafka, the event that brought it here.
-- name: requests_seen
insert into evidence.file_job_event as e (event_id, file_job_id, file_job_row_id, event_type, published_at, carried_by)
select x.event_id, x.job_id, x.row_id, x.event_type, $2::timestamptz, x.carried_by
from json_to_recordset($1::json) as x (event_id uuid, job_id uuid, row_id uuid, event_type text, carried_by uuid)
on conflict (event_id) do update set carried_by = excluded.carried_by
where e.file_job_row_id = excluded.file_job_row_id

-- The worker's gate: row and artifacts are locked until the claims are committed. Everybody locks rows first, by id.
-- name: gate
select a.file_job_row_id, a.id, a.s3_key, a.file_name, a.file_type, a.file_size_bytes, a.case_id, a.attempt_count,
    a.attachment_status, a.retry_status, a.claimed_by, a.claimed_until > $3::timestamptz as is_claimed
from evidence.file_job_artifact a
join evidence.file_job_row r on r.id = a.file_job_row_id
where a.file_job_id = any($1::uuid[]) and a.file_job_row_id = any($2::uuid[])
order by a.file_job_row_id, a.id
for update

-- name: claim
update evidence.file_job_artifact a set claimed_by = x.event_id, claimed_until = $3::timestamptz,
    retry_status = case when a.retry_status = 'RETRY_SCHEDULED' then 'RETRYING' else a.retry_status end,
    last_retry_at = case when a.attempt_count > 0 then $2::timestamptz else a.last_retry_at end, updated_at = $2::timestamptz
from json_to_recordset($1::json) as x (id uuid, event_id uuid)
where a.id = x.id

-- name: lock_rows
select id from evidence.file_job_row where id = any($1::uuid[]) order by id for update

-- An outcome is written if nobody has written a later one, and never over an attachment; what was given up meanwhile stays so. (`is not distinct from`: found
-- by its id; a plan made while the table was small would read all artifacts of the job for each of these)
-- name: outcomes
update evidence.file_job_artifact a set
    attachment_status = case when x.error_code is null then 'ATTACHED' else 'FAILED' end,
    attachment_error_code = x.error_code,
    attachment_error_message = x.error_message,
    attached_at = case when x.error_code is null then $3::timestamptz end,
    attempt_count = a.attempt_count + 1,
    retry_count = a.attempt_count,
    retry_status = case
        when a.retry_status = 'PERMANENT_FAILED' and x.error_code is not null then 'PERMANENT_FAILED' else x.retry_status
    end,
    claimed_by = null,
    claimed_until = null,
    next_retry_at = case when x.wait_seconds is not null and a.retry_status <> 'PERMANENT_FAILED' then $3::timestamptz + make_interval(secs => x.wait_seconds) end,
    updated_at = $3::timestamptz
from json_to_recordset($2::json) as x (
    id uuid, attempt_count int, error_code text, error_message text, retry_status text, wait_seconds double precision
)
where a.file_job_id is not distinct from $1 and a.id = x.id and a.attempt_count = x.attempt_count
    and a.attachment_status <> 'ATTACHED'
returning a.id

-- name: roll_up
update evidence.file_job_row r set
    evidence_count = x.evidence_count,
    evidence_attached_count = x.attached,
    evidence_failed_count = x.failed,
    evidence_status = case
        when x.attached = x.evidence_count then 'COMPLETED'
        when x.failed = x.evidence_count then 'FAILED'
        when x.attached + x.failed = 0 then 'PENDING'
        else 'PARTIALLY_FAILED'
    end,
    evidence_failed_files = x.files,
    evidence_completed_at = case when x.attached = x.evidence_count then coalesce(r.evidence_completed_at, $3::timestamptz) end,
    updated_at = $3::timestamptz
from (
    select file_job_row_id, count(*) as evidence_count,
        count(*) filter (where attachment_status = 'ATTACHED') as attached,
        count(*) filter (where attachment_status = 'FAILED') as failed,
        jsonb_agg(
            jsonb_build_object('artifact_id', id, 'file_name', file_name, 'errorCode', attachment_error_code) order by id
        ) filter (where attachment_status = 'FAILED') as files
    from evidence.file_job_artifact
    where file_job_id = $1 and file_job_row_id = any($2::uuid[])
    group by file_job_row_id
) as x
where r.id = x.file_job_row_id

-- What keeps the notices from being sent.
-- name: standing
select status, n1_sent_at, n2_sent_at,
    exists (select 1 from evidence.file_job_artifact where file_job_id = $1 and attempt_count = 0) as untried,
    exists (
        select 1 from evidence.file_job_artifact
        where file_job_id = $1 and retry_status in ('RETRY_FAILED', 'RETRY_SCHEDULED', 'RETRYING')
    ) as waiting
from evidence.file_job where id = $1

-- Whoever changes the row sends the notice; nobody changes it twice.
-- name: take_n1
update evidence.file_job set n1_sent_at = $2, updated_at = $2
where id = $1 and n1_sent_at is null and status = 'PROCESSING'
returning id

-- name: take_n2
update evidence.file_job set n2_sent_at = $2, n2_forced = $3, status = 'COMPLETED', updated_at = $2
where id = $1 and n2_sent_at is null and n1_sent_at is not null
returning n1_sent_at

-- name: keep_n1
update evidence.file_job set n1_summary = $2::jsonb where id = $1

-- name: keep_n2
update evidence.file_job set n2_summary = $2::jsonb where id = $1

-- name: leftovers
update evidence.file_job_artifact set retry_status = 'PERMANENT_FAILED', attachment_status = 'FAILED', next_retry_at = null,
    attachment_error_code = coalesce(attachment_error_code, 'ATTACHMENT_API_TIMEOUT'),
    attachment_error_message = coalesce(attachment_error_message, 'not attempted before the final notice was due'),
    updated_at = $2
where file_job_id = $1 and attachment_status <> 'ATTACHED' and retry_status <> 'PERMANENT_FAILED'
returning file_job_row_id, attachment_error_code

-- name: summary
select attachment_status, retry_status, attachment_error_code, error_category, retry_count > 0 as retried,
    attempt_count >= $2 as used_up, attempt_count = 0 as untried, count(*) as n
from evidence.file_job_artifact where file_job_id = $1
group by 1, 2, 3, 4, 5, 6, 7

-- name: cannot_retry
select id, case_id, file_name, attachment_error_code, attachment_error_message
from evidence.file_job_artifact
where file_job_id = $1 and attachment_status <> 'ATTACHED' and retry_status = 'PERMANENT_FAILED'
order by id limit $2

-- name: bad_rows
select line, row_error_code, row_error_message from evidence.file_job_row
where file_job_id = $1 and row_error_code is not null order by line limit $2

-- name: due_jobs
select file_job_id from evidence.file_job_artifact
where next_retry_at <= $1 and retry_status in ('PENDING', 'RETRY_FAILED') and retry_count < 2
    and attachment_status <> 'ATTACHED'
group by file_job_id
order by min(next_retry_at) limit 100

-- name: due_rows
select a.file_job_row_id from evidence.file_job_artifact a
join evidence.file_job_row r on r.id = a.file_job_row_id
where a.file_job_id is not distinct from $1 and a.next_retry_at <= $2 and a.retry_status in ('PENDING', 'RETRY_FAILED')
    and a.retry_count < 2 and a.attachment_status <> 'ATTACHED' and a.is_retryable
    and r.evidence_status in ('PARTIALLY_FAILED', 'FAILED')
group by a.file_job_row_id
order by min(a.next_retry_at) limit $3

-- What a worker has locked is left for the next look.
-- name: requeue
with due as (
    select id from evidence.file_job_artifact
    where file_job_id = $1 and file_job_row_id = any($2::uuid[]) and next_retry_at <= $3
        and retry_status in ('PENDING', 'RETRY_FAILED') and retry_count < 2
        and attachment_status <> 'ATTACHED' and is_retryable
    for update skip locked
)
update evidence.file_job_artifact a set retry_status = 'RETRY_SCHEDULED', updated_at = $3
from due where a.id = due.id
returning a.file_job_row_id, a.retry_count

-- name: artifacts_of
select file_job_row_id, id, s3_key, case_id from evidence.file_job_artifact
where file_job_id = $1 and file_job_row_id = any($2::uuid[])
order by file_job_row_id, id

-- name: heartbeat
insert into evidence.scheduler as s (name, last_run_at, duration_seconds, batch_size, circuit_open_count)
values ('retry', $1, $2, $3, $4)
on conflict (name) do update set last_run_at = excluded.last_run_at, duration_seconds = excluded.duration_seconds,
    batch_size = excluded.batch_size, circuit_open_count = s.circuit_open_count + excluded.circuit_open_count

-- name: scheduler
select last_run_at, duration_seconds, batch_size, circuit_open_count from evidence.scheduler where name = 'retry'

-- name: depth
select count(*) as artifacts, count(distinct file_job_row_id) as rows from (
    select file_job_row_id from evidence.file_job_artifact
    where retry_status in ('RETRY_FAILED', 'RETRY_SCHEDULED', 'RETRYING') limit 10001
) as waiting

-- name: latency
select count(*) as n, coalesce(avg(extract(epoch from n2_sent_at - n1_sent_at)), 0)::double precision as average,
    coalesce(max(extract(epoch from n2_sent_at - n1_sent_at)), 0)::double precision as longest,
    count(*) filter (where n2_forced) as forced
from (
    select n1_sent_at, n2_sent_at, n2_forced from evidence.file_job
    where n2_sent_at > $1 order by n2_sent_at desc limit 10000
) as lately

-- Both sides of the roll-ups, a page at a time.
-- name: derived
select r.id, count(a.id) as evidence_count,
    count(a.id) filter (where a.attachment_status = 'ATTACHED') as attached,
    count(a.id) filter (where a.attachment_status = 'FAILED') as failed, r.row_error_code
from (
    select id, file_job_id, row_error_code from evidence.file_job_row where id > $1 order by id limit $2
) as r
left join evidence.file_job_artifact a on a.file_job_id = r.file_job_id and a.file_job_row_id = r.id
group by r.id, r.row_error_code
order by r.id

-- name: kept
select id, evidence_count, evidence_attached_count as attached, evidence_failed_count as failed, evidence_status
from evidence.file_job_row where id > $1 order by id limit $2

-- name: derived_one
select r.file_job_id, r.evidence_count as kept_count, r.evidence_attached_count as kept_attached,
    r.evidence_failed_count as kept_failed, r.evidence_status, r.row_error_code, count(a.id) as evidence_count,
    count(a.id) filter (where a.attachment_status = 'ATTACHED') as attached,
    count(a.id) filter (where a.attachment_status = 'FAILED') as failed
from evidence.file_job_row r
left join evidence.file_job_artifact a on a.file_job_id = r.file_job_id and a.file_job_row_id = r.id
where r.id = $1
group by r.id

-- name: clear_empty
update evidence.file_job_row set evidence_count = 0, evidence_attached_count = 0, evidence_failed_count = 0,
    evidence_status = case when row_error_code is null then 'PENDING' else 'FAILED' end, evidence_failed_files = null
where id = $1

-- name: open_jobs
select j.id, j.n1_sent_at is not null as n1,
    exists (select 1 from evidence.file_job_artifact a where a.file_job_id = j.id and a.attempt_count = 0) as untried,
    exists (
        select 1 from evidence.file_job_artifact a
        where a.file_job_id = j.id and a.retry_status in ('RETRY_FAILED', 'RETRY_SCHEDULED', 'RETRYING')
    ) as waiting
from evidence.file_job j where j.status = 'PROCESSING' and j.updated_at < $1

-- Rows whose last request was called off by a person, and that have artifacts which nobody else will try.
-- name: called_off
select e.file_job_id, e.file_job_row_id, o.id as event_id, o.cancelled_by, o.cancel_reason
from evidence.file_job j
join redrive.outbox o on o.correlation_id = j.id::text
join evidence.file_job_event e on e.file_job_id = j.id and (e.event_id = o.id or e.event_id::text = o.causation_id)
where j.status = 'PROCESSING' and o.status = 'cancelled' and o.ended_at < $1
    and exists (
        select 1 from evidence.file_job_artifact a
        where a.file_job_id = e.file_job_id and a.file_job_row_id = e.file_job_row_id
            and a.attachment_status <> 'ATTACHED'
            and (a.attempt_count = 0 or a.retry_status in ('RETRY_SCHEDULED', 'RETRYING'))
    )
    and not exists (
        select 1 from evidence.file_job_event n
        where n.file_job_row_id = e.file_job_row_id and n.published_at > e.published_at
    )

-- name: rows_of
select id, line, case_id, row_error_code, row_error_message, evidence_count, evidence_attached_count,
    evidence_failed_count, evidence_status, evidence_completed_at
from evidence.file_job_row where file_job_id = $1 and line > $2 order by line limit $3

-- name: lineage
select file_job_row_id, artifact_id, case_id, file_name, s3_key, attachment_status, retry_status,
    attachment_error_code, attempt_count, event_id, event_type, published_at, event_status, event_attempts, carried_by
from evidence.lineage where file_job_id = $1 and file_job_row_id = any($2::uuid[])
order by artifact_id, published_at
