-- The tables of the evidence app on SQLite: as on PostgreSQL, with instants in microseconds and no INCLUDE.

-- One uploaded ZIP.
create table if not exists file_job (
    id text primary key,
    file_name text not null,
    file_size_bytes integer not null,
    s3_key text not null,
    upload_key text unique,
    status text not null default 'RECEIVED'
        check (status in ('RECEIVED', 'PROCESSING', 'COMPLETED', 'FAILED_VALIDATION')),
    error_code text,
    error_message text,
    row_count integer not null default 0,
    artifact_count integer not null default 0,
    n1_sent_at integer,
    n2_sent_at integer,
    n2_forced integer not null default 0,
    n1_summary text,
    n2_summary text,
    created_at integer not null,
    updated_at integer not null
);

-- One line of its CSV. The evidence_ columns are derived from the artifacts.
create table if not exists file_job_row (
    id text primary key,
    file_job_id text not null references file_job (id),
    line integer not null,
    case_id text,
    row_error_code text,
    row_error_message text,
    evidence_count integer not null default 0,
    evidence_attached_count integer not null default 0,
    evidence_failed_count integer not null default 0,
    evidence_status text not null default 'PENDING'
        check (evidence_status in ('PENDING', 'COMPLETED', 'PARTIALLY_FAILED', 'FAILED')),
    evidence_failed_files text,
    evidence_completed_at integer,
    created_at integer not null,
    updated_at integer not null,
    unique (file_job_id, line)
);

-- One file that belongs to a case: the truth about what was tried and what became of it. claimed_by is the event whose
-- handler may call the case API for it until claimed_until. An expired claim stays: its holder may have attached the file.
create table if not exists file_job_artifact (
    id text primary key,
    file_job_id text not null,
    file_job_row_id text not null references file_job_row (id),
    case_id text not null,
    file_name text not null,
    file_type text,
    file_size_bytes integer,
    s3_key text not null,
    attachment_status text not null default 'PENDING'
        check (attachment_status in ('PENDING', 'ATTACHED', 'FAILED')),
    attachment_error_code text,
    attachment_error_message text,
    attached_at integer,
    attempt_count integer not null default 0,
    retry_count integer not null default 0,
    retry_status text not null default 'PENDING' check (
        retry_status in ('PENDING', 'RETRY_SCHEDULED', 'RETRYING', 'RETRY_SUCCESS', 'RETRY_FAILED', 'PERMANENT_FAILED')
    ),
    next_retry_at integer,
    last_retry_at integer,
    error_category text generated always as (
        case
            when attachment_error_code in ('ATTACHMENT_API_TIMEOUT', '503', 'NETWORK_TIMEOUT') then 'NETWORK'
            when attachment_error_code in ('500', 'SYSTEM_ERROR') then 'SYSTEM'
            when attachment_error_code in ('CORRUPTED_FILE', 'INVALID_FORMAT', 'S3_NOT_FOUND') then 'DATA'
            when attachment_error_code in ('401', '403', 'UNAUTHORIZED', 'CASE_NOT_FOUND') then 'AUTH'
            else 'SYSTEM'
        end
    ) stored,
    -- A generated column may not refer to another: what is neither DATA nor AUTH is NETWORK or SYSTEM.
    is_retryable integer generated always as (
        coalesce(
            attachment_error_code not in (
                'CORRUPTED_FILE', 'INVALID_FORMAT', 'S3_NOT_FOUND', '401', '403', 'UNAUTHORIZED', 'CASE_NOT_FOUND'
            ),
            1
        ) and retry_count < 2
    ) stored,
    claimed_by text,
    claimed_until integer,
    created_at integer not null,
    updated_at integer not null
);

create index if not exists idx_artifact_retry_scan on file_job_artifact (next_retry_at, retry_count)
    where retry_status in ('PENDING', 'RETRY_FAILED') and retry_count < 2;

create index if not exists idx_artifact_retry_cover on file_job_artifact
    (next_retry_at, retry_count, id, file_job_id, file_job_row_id, s3_key, case_id, retry_status, attachment_status)
    where retry_status in ('PENDING', 'RETRY_FAILED') and retry_count < 2;

create index if not exists idx_artifact_by_job_row on file_job_artifact (file_job_id, file_job_row_id);

-- What keeps N1 from being sent, and N2: both are asked for often and must be found, or not, at once.
create index if not exists idx_artifact_untried on file_job_artifact (file_job_id) where attempt_count = 0;

create index if not exists idx_artifact_waiting on file_job_artifact (file_job_id)
    where retry_status in ('RETRY_FAILED', 'RETRY_SCHEDULED', 'RETRYING');

create index if not exists idx_job_n2 on file_job (n2_sent_at);

-- Which events were published for a row; the outbox forgets delivered ones after a while, this does not. carried_by: the
-- event as which a message from Kafka, or a copy, came to the handler.
create table if not exists file_job_event (
    event_id text primary key,
    file_job_id text not null,
    file_job_row_id text not null,
    event_type text not null,
    published_at integer not null,
    carried_by text
);

create index if not exists idx_event_by_row on file_job_event (file_job_row_id);

create index if not exists idx_event_by_job on file_job_event (file_job_id);

-- How the retry scheduler fared; one row.
create table if not exists evidence_scheduler (
    name text primary key,
    last_run_at integer not null,
    duration_seconds real not null,
    batch_size integer not null,
    circuit_open_count integer not null default 0
);

-- ZIP, job, row, artifact, outbox, event: the whole lineage in one place.
drop view if exists evidence_lineage;

create view evidence_lineage as
select
    j.id as file_job_id, j.s3_key as zip_key, j.file_name as zip_name, j.status as job_status,
    r.id as file_job_row_id, r.line, r.evidence_status,
    a.id as artifact_id, a.case_id, a.file_name, a.s3_key, a.attachment_status, a.retry_status,
    a.attachment_error_code, a.attempt_count,
    e.event_id, e.event_type, e.published_at, o.status as event_status, o.attempts as event_attempts,
    e.carried_by
from file_job j
left join file_job_row r on r.file_job_id = j.id
left join file_job_artifact a on a.file_job_id = j.id and a.file_job_row_id = r.id
left join file_job_event e on e.file_job_row_id = r.id
left join redrive_outbox o on o.id = coalesce(e.carried_by, e.event_id);
