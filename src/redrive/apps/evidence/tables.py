"""Tables: the app's own, and the statements it runs on them.

Each statement stands in ``statements.sqlite.sql`` and ``statements.postgres.sql`` under the same name: their diff is
the difference between the two. Rows come as the driver gives them, in the order of the columns.
"""

import json
import re
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from importlib import resources
from typing import Any, Final

from redrive import Work

JOB: Final = (
    "id", "file_name", "file_size_bytes", "s3_key", "status", "error_code", "error_message", "row_count",
    "artifact_count", "n1_sent_at", "n2_sent_at", "n2_forced", "n1_summary", "n2_summary", "created_at", "updated_at",
)  # fmt: skip
ROW: Final = (
    "id", "line", "case_id", "row_error_code", "row_error_message", "evidence_count", "evidence_attached_count",
    "evidence_failed_count", "evidence_status", "evidence_completed_at",
)  # fmt: skip
LINEAGE: Final = (
    "file_job_row_id", "artifact_id", "case_id", "file_name", "s3_key", "attachment_status", "retry_status",
    "attachment_error_code", "attempt_count", "event_id", "event_type", "published_at", "event_status",
    "event_attempts", "carried_by",
)  # fmt: skip
_BY_INDEX: Final = (
    "set local enable_seqscan = off; set local enable_hashjoin = off; set local enable_mergejoin = off;"
    " set local plan_cache_mode = force_generic_plan"
)
_ADDED: Final = (
    ("file_job_artifact", "claimed_by", "uuid", "text"),
    ("file_job_artifact", "claimed_until", "timestamptz", "integer"),
    ("file_job_event", "carried_by", "uuid", "text"),
)
"""Columns that databases of earlier versions do not have, with their types on PostgreSQL and on SQLite."""
_NAME: Final = re.compile(r"^-- name: (\w+)\n", re.MULTILINE)
_COMMENT: Final = re.compile(r"^--.*\n?", re.MULTILINE)


class Tables:
    """The statements in the words of one database."""

    def __init__(self, dialect: str, schema: str) -> None:
        """Read the statements; ``schema`` is that of Redrive's own tables, which some of them read."""
        self._is_postgres = dialect == "postgres"
        parts = _NAME.split(_read(f"statements.{dialect}.sql", schema))[1:]
        self._statements = {
            name: _COMMENT.sub("", text).strip() for name, text in zip(parts[::2], parts[1::2], strict=True)
        }
        self._schema = [
            statement
            for each in _COMMENT.sub("", _read(f"{dialect}.sql", schema)).split(";\n")
            if (statement := each.strip())
        ]
        self._first_view = next(place for place, each in enumerate(self._schema) if " view " in each)

    async def make(self, tx: Work) -> None:
        """Make what is missing."""
        tables, views = self._schema[: self._first_view], self._schema[self._first_view :]
        for statement in tables:
            await tx.execute(statement)
        for table, column, postgres, sqlite in _ADDED:
            if (column,) not in {(*row,) for row in await self.ask(tx, "columns", table)}:
                named, type_ = (f"evidence.{table}", postgres) if self._is_postgres else (table, sqlite)
                await tx.execute(f"alter table {named} add column {column} {type_}")
        for statement in views:
            await tx.execute(statement)

    async def by_index(self, tx: Work) -> None:
        """Have what follows in this transaction look for its few rows one by one, however large the tables are.

        A plan of PostgreSQL is kept, and may come from when the tables were empty: it would read all of a job (40 ms of
        20,000 artifacts) for each group of rows.
        """
        if self._is_postgres:
            await tx.execute(_BY_INDEX)

    async def ask(self, tx: Work, name: str, *values: Any) -> list[Sequence[Any]]:
        """Run a statement that gives rows."""
        return await tx.fetch(self._statements[name], *map(self._given, values))

    async def do(self, tx: Work, name: str, *values: Any) -> int:
        """Run a statement that gives none; return how many rows it changed."""
        return await tx.execute(self._statements[name], *map(self._given, values))

    def ids(self, ids: Iterable[str]) -> Any:
        """Write a set of ids as this database takes it."""
        return [*ids] if self._is_postgres else json.dumps([*ids])

    def _given(self, value: Any) -> Any:
        if isinstance(value, datetime) and not self._is_postgres:
            return round(value.timestamp() * 1e6)
        if isinstance(value, bool) and not self._is_postgres:
            return int(value)
        return value


def instant(value: Any) -> datetime | None:
    """Read an instant of either database."""
    if value is None or isinstance(value, datetime):
        return value
    return datetime.fromtimestamp(value / 1e6, UTC)


def plain(value: Any) -> Any:
    """Write a value of a row as JSON has it; ids and instants as text."""
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat().replace("+00:00", "Z")
    return value if value is None or isinstance(value, str | int | float) else str(value)


def _read(name: str, schema: str) -> str:
    text = resources.files(__package__).joinpath(name).read_text(encoding="utf-8")
    return re.sub(r"\bredrive([._])outbox\b", rf"{schema}\1outbox", text)
