"""Tables: the two of our own with the view of messages, and what is said to them in each dialect."""

import re
from dataclasses import dataclass
from importlib.resources import files
from typing import Final

from redrive import Work


@dataclass(frozen=True, slots=True)
class Statements:
    """What is said to the tables."""

    take: str
    """Note messages, given as JSON pairs of source and id, and answer those that are new."""
    forget: str
    refuse: str
    refused: str


SQLITE: Final = Statements(
    take="""
        insert into webhooks_seen (source, message_id, seen_at)
        select json_extract(value, '$[0]'), json_extract(value, '$[1]'), ?2 from json_each(?1) where true
        on conflict do nothing
        returning source, message_id
    """,
    forget="""
        delete from webhooks_seen where (source, message_id) in
            (select source, message_id from webhooks_seen where seen_at < ?1 order by seen_at limit ?2)
    """,
    refuse="""
        insert into webhooks_refused values (?1, ?2, ?3, ?4, ?5, ?6, ?7)
        on conflict (source, reason) do update set refused_count = refused_count + excluded.refused_count,
            last_at = excluded.last_at, last_detail = excluded.last_detail, last_peer = excluded.last_peer
    """,
    refused="select * from webhooks_refused order by last_at desc",
)

# In order of the key, so that two processes that take the same messages wait for one another and do not lock up.
POSTGRES: Final = Statements(
    take="""
        insert into webhooks.seen (source, message_id, seen_at)
        select value ->> 0, value ->> 1, $2::bigint from jsonb_array_elements($1::text::jsonb) as each(value)
        order by 1, 2
        on conflict do nothing
        returning source, message_id
    """,
    forget="""
        delete from webhooks.seen where (source, message_id) in
            (select source, message_id from webhooks.seen where seen_at < $1::bigint order by seen_at limit $2::bigint
             for update skip locked)
    """,
    refuse="""
        insert into webhooks.refused as old values ($1, $2, $3, $4, $5, $6, $7)
        on conflict (source, reason) do update set refused_count = old.refused_count + excluded.refused_count,
            last_at = excluded.last_at, last_detail = excluded.last_detail, last_peer = excluded.last_peer
    """,
    refused="select * from webhooks.refused order by last_at desc",
)


def statements(dialect: str) -> Statements:
    """Choose what is said."""
    return SQLITE if dialect == "sqlite" else POSTGRES


async def make(tx: Work, dialect: str, schema: str) -> None:
    """Make the tables where they are missing, and the view of messages over Redrive's own tables in that schema."""
    text = files(__package__).joinpath(f"{dialect}.sql").read_text(encoding="utf-8")
    text = re.sub(r"\bredrive([._])outbox\b", rf"{schema}\1outbox", text)
    for statement in text.split(";\n"):
        if statement.strip():
            await tx.execute(statement)
