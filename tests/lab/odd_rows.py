"""Odd rows: events that somebody wrote into the table with SQL, past every check of ours."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from typing import Any
from uuid import UUID, uuid4

import psycopg

from redrive import Redrive

DEEP = "[" * 3_000 + "]" * 3_000
BOTH: Mapping[str, Mapping[str, str]] = {
    "five thousand nines": {"payload": "'" + "9" * 5_000 + "'"},
    "three thousand lists": {"payload": f"'{DEEP}'"},
    "three hundred lists": {"payload": "'" + "[" * 300 + "]" * 300 + "'"},
    "a NUL escape": {"payload": """'{"a": "\\u0000"}'"""},
    "a lone surrogate": {"payload": """'{"\\ud800": "\\udfff"}'"""},
    "headers in a list": {"headers": "'[1, 2]'"},
    "headers with numbers": {"headers": """'{"a": 1, "traceparent": null}'"""},
    "headers of nines": {"headers": "'" + "9" * 5_000 + "'"},
    "a history that is no list": {"failure_history": """'{"a": 1}'"""},
    "a history of texts": {"failure_history": """'["a", null, 7]'"""},
    "a history of wrong kinds": {
        "failure_history": """'[{"cycle": "x", "failed_at": 7, "last_error": {"a": 1}, "attempts": []}]'"""
    },
    "a history that never was": {"failure_history": """'[{"failed_at": "yesterday"}]'"""},
    "another class of error": {"error_class": "'no_such_class'", "error_type": "''", "last_error": "''"},
    "control characters": {"type": "'a' || chr(27) || '[2J'", "subject": "chr(10)"},
    "an empty type": {"type": "''", "source": "''"},
}
ONLY: Mapping[str, Mapping[str, Mapping[str, str]]] = {
    "postgres": {
        "endless": {"created_at": "'infinity'", "deadline_at": "'infinity'"},
        "before everything": {"created_at": "'-infinity'", "due_at": "'-infinity'"},
        "before the year 1": {"created_at": "'4713-01-01 BC'", "due_at": "'0044-03-15 BC'"},
        "after the year 9999": {"deadline_at": "'290000-01-01'", "created_at": "'290000-01-01'"},
    },
    "sqlite": {
        "no JSON": {"payload": "'{not json'", "headers": "'nor this'", "failure_history": "'nor that'"},
        "not a number": {"payload": """'{"a": NaN}'"""},
        "bytes": {"payload": "x'ff00ff'", "headers": "x'00'", "source": "x'fe'", "subject": "x'fffe'"},
        "text that is not UTF-8": {"payload": "cast(x'22ff22' as text)", "subject": "cast(x'ff' as text)"},
        "a source that is not UTF-8": {"source": "cast(x'61ff' as text)", "last_error": "cast(x'ff' as text)"},
        "instants beyond all": {"created_at": "9223372036854775807", "deadline_at": "9223372036854775807"},
        "instants before all": {"created_at": "-9223372036854775807", "due_at": "-9223372036854775807"},
        "instants in words": {"created_at": "'yesterday'", "deadline_at": "'never'"},
        "counts in words": {"attempts": "'many'", "lost_count": "'few'", "cycle": "'one'", "max_attempts": "'two'"},
    },
}


def odd_rows(store: str) -> dict[str, Mapping[str, str]]:
    """Give what is odd about each row, by its name: columns, and SQL that says their values."""
    return {**BOTH, **ONLY[store]}


def write(app: Redrive, url: str, status: str) -> dict[str, UUID]:
    """Write one odd row of each kind; return their ids by name."""
    ids: dict[str, UUID] = {}
    now = "clock_timestamp()" if app.dialect == "postgres" else str(int(app.clock.now().timestamp() * 1e6))
    ended = {"ended_at": now, "last_error": "'boom'", "error_class": "'invalid'", "fingerprint": "'1:odd'"}
    table = "redrive.outbox" if app.dialect == "postgres" else "redrive_outbox"
    for name, odd in odd_rows(app.dialect).items():
        ids[name] = uuid4()
        values = {
            "id": f"'{ids[name]}'", "type": "'odd'", "target": "'odd'", "payload": "'{}'", "idempotency_key": "'k'",
            "status": f"'{status}'", "due_at": now, "created_at": now, **(ended if status == "failed" else {}), **odd,
        }  # fmt: skip
        run(app, url, f"insert into {table} ({', '.join(values)}) values ({', '.join(values.values())})")
    return ids


def run(app: Redrive, url: str, statement: Any) -> None:
    """Run SQL on a connection of one's own."""
    if app.dialect == "postgres":
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute(statement)
        return
    with sqlite3.connect(url.removeprefix("sqlite:///"), timeout=30) as file:
        file.create_function("chr", 1, chr)
        file.execute(statement)
    file.close()
