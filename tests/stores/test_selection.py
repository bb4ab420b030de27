"""What a selection means in SQL is what it means in Python, on both stores, whatever the strings; and indexes serve."""

from __future__ import annotations

import json
import random
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, fields
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import asyncpg
import pytest

from redrive import Event, Redrive, Status
from redrive.event import ErrorClass
from redrive.instant import to_micros
from redrive.selection import Dialect, JsonLiteral, Pattern, Selection, Term, dead_letters, parse
from redrive.store.sql import Statement, statement
from tests.stores.helpers import is_postgres

pytestmark = pytest.mark.promise("one-semantics")

NOW = datetime(2026, 11, 1, 16, 5, tzinfo=UTC)
SEED = 20_261_101

HOSTILE = (
    "", "a", "A", "ab", "a%b", "a_b", "axb", "a*b", "a?b", "a[b]", "[", "]", "a\\b", "\\", "\\%", "%", "_", "'", "''",
    '"', "x'; drop table outbox; --", ":now", "$1", "%s", "{columns}", " ", "a b", "é", "É", "ß", "SS", "İ", "i",
    "\u0131", "日本", "😀", "\n", "\t", "a\nb", "\x1b[0m", "\u202e", "null", "10", "true", "Timed out", "TIMED OUT",
)  # fmt: skip
NAMES = ("a", "b", "A", "0", "a b", "c.d", "é", "日本", "k'ey", "x[0]", "$", "%", "*", "n-1", "😀")
SCALARS = (
    *HOSTILE, 0, 1, -1, 10, 10.0, 9.5, -9.5, 100, 1e2, 0.1, 1e-7, 1.5e300, -1.5e300, 2**53, 2**53 + 1, 2**63 - 1,
    -(2**63) + 1, 12345678901234567890123, True, False, None,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Batched(Event):
    batch_id: UUID | None = None


# --- made-up events ---


def an_event(rnd: random.Random) -> Batched:
    status = rnd.choice(list(Status))
    ended = status in (Status.FAILED, Status.DELIVERED, Status.CANCELLED)
    failed = rnd.random() < 0.6

    def perhaps(value: Any, chance: float = 0.7) -> Any:
        return value if rnd.random() < chance else None

    def instant() -> datetime:
        return NOW + timedelta(seconds=rnd.choice([-7200, -3600, -600, 0, 600, 3600]), microseconds=rnd.randint(-1, 1))

    def text() -> str:
        return rnd.choice(HOSTILE)

    event_id = an_id(rnd)
    return Batched(
        id=event_id, type=rnd.choice(["order.paid", "order.placed", text()]), source=text(), target=text(),
        subject=perhaps(text()), payload=a_payload(rnd), headers={rnd.choice(NAMES): text() for _ in range(2)},
        idempotency_key=text(), retry_key=perhaps(f"{event_id}{text()}", 0.3), correlation_id=perhaps(text()),
        causation_id=perhaps(text()), ordering_key=perhaps(text()), queue=text(), priority=rnd.randint(0, 3),
        status=status, due_at=instant(), attempts=rnd.randint(0, 5), lost_count=rnd.randint(0, 2), max_attempts=None,
        fence=0, session_id=None, generation=rnd.choice([0, 7, 2**40]), cycle=rnd.randint(0, 2), first_failed_at=None,
        last_error=f"{text()}{text()}{text()}" if failed else None,
        error_class=rnd.choice(list(ErrorClass)).value if failed else None,
        error_type=rnd.choice(["ValueError", "httpx.ConnectTimeout", "a.b.ValueError", "", text()]) if failed else None,
        safe_to_retry=rnd.choice([True, False, None]), failure_history=(), cancelled_by=None, cancel_reason=None,
        compensation=None, steps_from=0,
        fingerprint=perhaps(rnd.choice([f"1:{rnd.choice('9f')}f3a00112233aabb", "2:9f3a00112233aabb", text()])),
        created_at=instant(), ended_at=instant() if ended else None,
        deleted_at=NOW if status is Status.FAILED and rnd.random() < 0.3 else None, batch_id=perhaps(an_id(rnd)),
    )  # fmt: skip


def an_id(rnd: random.Random) -> UUID:
    return UUID(rnd.choice(["019a", "019b", "019a11112222", "f"]).ljust(16, "0") + f"{rnd.getrandbits(64):016x}")


def a_payload(rnd: random.Random, depth: int = 2) -> Any:
    chosen = rnd.random()
    if depth and chosen < 0.6:
        return {rnd.choice(NAMES): a_payload(rnd, depth - 1) for _ in range(rnd.randint(0, 4))}
    if depth and chosen < 0.8:
        return [a_payload(rnd, depth - 1) for _ in range(rnd.randint(0, 3))]
    return rnd.choice(SCALARS)


# --- made-up selections, most of them near an event ---


def a_selection(rnd: random.Random, events: Sequence[Event]) -> Selection:
    makers = (text_term, text_term, word_term, id_term, number_term, time_term, flag_term, json_term, json_term)
    near = rnd.choice(events)
    return Selection(tuple(rnd.choice(makers)(rnd, near) for _ in range(rnd.choice([1, 1, 1, 2, 3]))))


def some(rnd: random.Random, make: Callable[[], Any]) -> tuple[Any, ...]:
    return tuple(make() for _ in range(rnd.choice([1, 1, 1, 2, 3])))


def a_pattern(rnd: random.Random, near: str | None, *, empty: bool = True) -> Pattern:
    text = near if near is not None and rnd.random() < 0.7 else rnd.choice(HOSTILE)
    shape = rnd.random()
    cut, end = sorted((rnd.randint(0, len(text)), rnd.randint(0, len(text))))
    if shape < 0.45 and (text or empty):
        return Pattern((text,))
    if shape < 0.6:
        return Pattern((text[:cut], ""))
    if shape < 0.75:
        return Pattern(("", text[cut:]))
    middle = (text[cut:end],) if text[cut:end] else ()
    return Pattern((text[:cut], *middle, text[end:])) if rnd.random() < 0.5 else Pattern(("", *middle, ""))


def text_term(rnd: random.Random, near: Event) -> Term:
    columns = {
        "type": "type", "target": "target", "queue": "queue", "source": "source", "subject": "subject",
        "key": "ordering_key", "retry-key": "retry_key", "idem": "idempotency_key", "corr": "correlation_id",
        "cause": "causation_id", "group": "fingerprint", "error-type": "error_type", "text": "last_error",
    }  # fmt: skip
    name = rnd.choice(list(columns))
    held = getattr(near, columns[name])
    if held and name in ("text", "group", "error-type"):
        held = rnd.choice(
            [held, held.swapcase() if name == "text" else held, held[: rnd.randint(1, len(held))], held[-4:]]
        )
    if name == "corr" and rnd.random() < 0.4:
        held = str(near.id)
    empty = name not in ("text", "group")
    return Term(name, ":", some(rnd, lambda: a_pattern(rnd, held or None, empty=empty)), rnd.random() < 0.3)


def word_term(rnd: random.Random, near: Event) -> Term:
    if rnd.random() < 0.5:
        return Term("status", ":", some(rnd, lambda: rnd.choice(list(Status)).value), rnd.random() < 0.3)
    return Term("class", ":", some(rnd, lambda: rnd.choice(list(ErrorClass)).value), rnd.random() < 0.3)


def id_term(rnd: random.Random, near: Event) -> Term:
    name = rnd.choice(["id", "batch"])
    held = (near.id if name == "id" else getattr(near, "batch_id", None) or near.id).hex
    return Term(name, ":", some(rnd, lambda: held[: rnd.choice([1, 4, 12, 31, 32])]), rnd.random() < 0.3)


def number_term(rnd: random.Random, near: Event) -> Term:
    columns = {"attempts": "attempts", "lost": "lost_count", "cycle": "cycle", "generation": "generation"}
    name = rnd.choice([*columns, "priority"])
    op = rnd.choice([":", ">", ">=", "<", "<="])
    held = [0, 1, 2, 3] if name == "priority" else [getattr(near, columns[name]), 2**63 - 1, -1, 2]
    values = some(rnd, lambda: rnd.choice(held))
    return Term(name, op, values if op == ":" else values[:1], rnd.random() < 0.3)


def time_term(rnd: random.Random, near: Event) -> Term:
    op = rnd.choice([">", ">=", "<", "<="])
    columns = {"created": "created_at", "failed-at": "ended_at", "due-at": "due_at"}
    if rnd.random() < 0.5:
        name = rnd.choice(["age", "failed", "due"])
        span = timedelta(seconds=rnd.choice([0, 600, 3600, 7200]), microseconds=rnd.choice([0, 1]))
        return Term(name, op, (-span if name == "due" and rnd.random() < 0.5 else span,), rnd.random() < 0.3)
    name = rnd.choice(list(columns))
    return Term(name, op, (getattr(near, columns[name]) or NOW,), rnd.random() < 0.3)


def flag_term(rnd: random.Random, near: Event) -> Term:
    if rnd.random() < 0.5:
        return Term("discarded", ":", (rnd.random() < 0.5,))
    return Term("safe", ":", some(rnd, lambda: rnd.random() < 0.5), rnd.random() < 0.3)


def json_term(rnd: random.Random, near: Event) -> Term:
    if rnd.random() < 0.25:
        name = rnd.choice([*near.headers, rnd.choice(NAMES)])
        values = some(rnd, lambda: a_pattern(rnd, near.headers.get(name)))
        return Term("header", ":", values, rnd.random() < 0.3, (name,))
    path, held = a_path(rnd, near.payload)
    op = rnd.choice([":", ":", ":", ">", ">=", "<", "<="])
    numbers = [each for each in SCALARS if isinstance(each, int | float) and not isinstance(each, bool)]
    if op != ":":
        number = held if held in numbers and not isinstance(held, bool) else rnd.choice(numbers)
        literal = JsonLiteral(json.dumps(number))
        return Term("payload", op, (literal if literal.number is not None else JsonLiteral("5"),), False, path)

    def make() -> Pattern | JsonLiteral:
        value = held if rnd.random() < 0.6 and not isinstance(held, list | dict) else rnd.choice(SCALARS)
        if not isinstance(value, str):
            return JsonLiteral(json.dumps(value))
        return JsonLiteral(value) if value in ("10", "null", "true") and rnd.random() < 0.5 else a_pattern(rnd, value)

    return Term("payload", ":", some(rnd, make), rnd.random() < 0.3, path)


def a_path(rnd: random.Random, held: Any) -> tuple[tuple[str | int, ...], Any]:
    path: list[str | int] = []
    while held and isinstance(held, dict | list) and rnd.random() < 0.9:
        step: Any = rnd.choice(list(held)) if isinstance(held, dict) else rnd.randrange(len(held))
        path.append(step)
        held = held[step]
    if rnd.random() < 0.15:
        path.append(rnd.choice(NAMES) if rnd.random() < 0.7 else rnd.randint(0, 1))
    return tuple(path), held


# --- the bare tables ---

Query = Callable[[Statement, dict[str, Any]], Awaitable[list[Any]]]
COLUMNS = [each.name for each in fields(Batched) if each.name != "unreadable"]  # said of a row, not stored in it


@dataclass(frozen=True, slots=True)
class Bench:
    """A migrated database that the tests fill and ask as the stores do, past the stores."""

    dialect: Dialect
    table: str
    query: Query

    async def insert(self, events: Iterable[Batched], *, ascii_only: bool = False) -> None:
        places = ", ".join(f":{name}" for name in COLUMNS)
        insert = statement("insert", f"insert into {self.table} ({', '.join(COLUMNS)}) values ({places})")
        into = f"insert into {self.table.replace('outbox', 'batch')} (id, name, opened_at)"
        known = statement("known", f"{into} values (:id, '', :at) on conflict do nothing")
        for event in events:
            if event.batch_id is not None:
                batch = {"id": event.batch_id, "at": NOW}
                await self.query(known, {name: self._stored(each, name, ascii_only) for name, each in batch.items()})
            await self.query(insert, {name: self._stored(getattr(event, name), name, ascii_only) for name in COLUMNS})

    def _stored(self, value: Any, name: str, ascii_only: bool) -> Any:
        if name in ("payload", "headers", "failure_history"):
            return json.dumps(list(value) if isinstance(value, tuple) else value, ensure_ascii=ascii_only)
        if self.dialect == "sqlite" and isinstance(value, datetime):
            return to_micros(value)
        return (
            str(value) if isinstance(value, Status) or (self.dialect == "sqlite" and isinstance(value, UUID)) else value
        )

    async def found(self, selection: Selection) -> set[UUID]:
        clauses, values = selection.where(self.dialect, NOW)
        asked = statement("events", "\n".join((f"select {{columns}} from {self.table} where true", *clauses)))
        rows = await self.query(asked, values)
        return {UUID(str(row[0])) for row in rows}

    async def plan(self, selection: Selection, tail: str = "") -> str:
        clauses, values = selection.where(self.dialect, NOW)
        explain = "explain" if self.dialect == "postgres" else "explain query plan"
        asked = statement("plan", "\n".join((f"{explain} select id from {self.table} where true", *clauses, tail)))
        return "\n".join(str(tuple(row)) for row in await self.query(asked, values))


@pytest.fixture
async def bench(store_url: str) -> AsyncIterator[Bench]:
    async with Redrive(store_url, migrate=True):
        pass
    if is_postgres(store_url):
        connection = await asyncpg.connect(store_url)

        async def fetch(asked: Statement, values: dict[str, Any]) -> list[Any]:
            return list(await connection.fetch(asked.numbered.format(columns="id"), *asked.values(values)))

        yield Bench("postgres", "redrive.outbox", fetch)
        await connection.close()
    else:
        file = sqlite3.connect(store_url.removeprefix("sqlite:///"), isolation_level=None)

        async def select(asked: Statement, values: dict[str, Any]) -> list[Any]:
            return file.execute(asked.text.format(columns="id"), values).fetchall()

        yield Bench("sqlite", "redrive_outbox", select)
        file.close()


# --- the same meaning ---


async def test_a_selection_finds_what_it_matches(bench: Bench) -> None:
    rnd = random.Random(SEED)
    events = [an_event(rnd) for _ in range(300)]
    await bench.insert(events)
    hits = 0

    for _ in range(1_500):
        selection = a_selection(rnd, events)
        wanted = {event.id for event in events if selection.matches(event, NOW)}

        found = await bench.found(selection)

        assert found == wanted, selection.text
        assert parse(selection.text) == selection
        hits += 0 < len(wanted) < len(events)
    assert hits > 900  # most of the selections told some events from others


async def test_escaped_json_means_the_same(bench: Bench) -> None:
    texts = ["é", "日本", "😀", 'a"b', "a\\b", "\n", "\\u0000", "a\\\\u0000b"]
    events = [an_event(random.Random(n)) for n in range(len(texts))]
    events = [Batched(**{**_values(event), "payload": {"a": text}}) for event, text in zip(events, texts, strict=True)]
    await bench.insert(events, ascii_only=True)

    for event, text in zip(events, texts, strict=True):
        selection = Selection((Term("payload", ":", (Pattern((text,)),), path=("a",)),))

        assert selection.matches(event, NOW)
        assert await bench.found(selection) == {event.id}, text


@pytest.mark.parametrize(
    "payload",
    [
        r'{"a": "\u0000", "n": 1}', r'{"a": "\ud800", "n": 1}', r'{"a": "\udc00x", "n": 1}', '{"a": 1e999, "n": 1e999}',
        '{"a": 1e-999, "n": -1e-999}', f'{{"a": {"9" * 500}, "n": 1.{"5" * 500}}}', "1" + "0" * 400, "1e400",
    ],
)  # fmt: skip
async def test_a_document_that_the_database_cannot_read_does_not_fail_the_others(bench: Bench, payload: str) -> None:
    good, bad = (Batched(**{**_values(an_event(random.Random(n))), "payload": {"a": "x", "n": 5}}) for n in (1, 2))
    await bench.insert([good, bad])
    spoil = statement("spoil", f"update {bench.table} set payload = cast(:payload as json) where id = :id")
    await bench.query(spoil, {"payload": payload, "id": bad.id if bench.dialect == "postgres" else str(bad.id)})
    if bench.dialect == "sqlite":  # there `cast as json` would make a number of it
        bare = statement("spoil", f"update {bench.table} set payload = :payload where id = :id")
        await bench.query(bare, {"payload": payload, "id": str(bad.id)})

    assert await bench.found(parse("payload.a:x")) == {good.id}
    assert await bench.found(parse("payload.a:x*")) == {good.id}
    assert await bench.found(parse("payload.n:5")) == {good.id}
    assert await bench.found(parse("payload.n>=2 payload.n<100 payload.n<99.5")) == {good.id}
    assert good.id not in await bench.found(parse("payload:1e5"))


async def test_what_is_no_json_does_not_fail_the_others(sqlite_url: str) -> None:
    async with Redrive(sqlite_url, migrate=True) as app:
        good = await app.publish("t", {"a": "x"})
        bad = await app.publish("t", {"a": "x"})
    with sqlite3.connect(sqlite_url.removeprefix("sqlite:///")) as file:
        file.execute("update redrive_outbox set payload = 'no json', headers = '{' where id = ?", (str(bad.id),))
        clauses, values = parse("payload.a:x -header.a:b").where("sqlite", NOW)

        found = file.execute(f"select id from redrive_outbox where true {' '.join(clauses)}", values).fetchall()
    file.close()

    assert found == [(str(good.id),)]


async def test_fifty_terms_with_a_hundred_values_are_no_trouble(bench: Bench) -> None:
    rnd = random.Random(SEED)
    events = [an_event(rnd) for _ in range(20)]
    await bench.insert(events)
    path = ".a" * 30
    texts = (
        " ".join(f"-payload{path}:{n},x{n}" for n in range(48)),
        " ".join(f"-payload.a:{n}.5,{n}*" for n in range(50)),
        " ".join(f"-corr:{event.id},x" for event in events),
        "-id:" + ",".join(f"{n:08x}-0000-7000-8000-000000000000" for n in range(100)),
        "-text:" + ",".join(f"a*b*c*d*e*f*g{n}" for n in range(100)),
    )

    for text in texts:
        selection = parse(text)
        wanted = {event.id for event in events if selection.matches(event, NOW)}

        assert await bench.found(selection) == wanted


# --- indexes ---


async def many_delivered_and_few_failed(bench: Bench) -> None:
    sample = _values(an_event(random.Random(SEED)))
    sample.update(retry_key=None, deleted_at=None, ended_at=NOW, correlation_id=None, last_error="x" * 100)
    row = Batched(**{**sample, "status": Status.DELIVERED})
    await bench.insert([row])
    if bench.dialect == "postgres":
        numbers, made = "generate_series(1, 20000) as n", "cast(md5(cast(n as text)) as uuid)"
    else:
        numbers = "(with recursive c(n) as (select 1 union all select n + 1 from c where n < 20000) select n from c)"
        made = "printf('%08x-0000-7000-8000-000000000000', n * 7919 % 20011)"
    changed = {
        "id": made,
        "status": "case when n % 100 = 0 then 'failed' when n % 100 = 1 then 'pending' else 'delivered' end",
        "correlation_id": "case when n % 10 = 0 then cast(n as text) end",
    }
    columns = ", ".join(f"{changed.get(name, f'o.{name}')} as {name}" for name in COLUMNS)
    copy = f"insert into {bench.table} ({', '.join(COLUMNS)}) select {columns} from {bench.table} o, {numbers}"
    await bench.query(statement("copy", copy.replace("{", "{{").replace("}", "}}")), {})
    await bench.query(statement("analyze", f"analyze {bench.table}"), {})


@pytest.mark.parametrize(
    "text",
    ["", "class:missing", "type:order.* age>1h", "failed<2h", "payload.a:b", '"timed out" -key:x', "-status:pending"],
)
async def test_the_quarantine_is_read_by_its_own_index(bench: Bench, text: str) -> None:
    await many_delivered_and_few_failed(bench)
    selection = dead_letters(parse(text))

    whole, page = await bench.plan(selection), await bench.plan(selection, "order by id desc limit 50")

    for plan in (whole, page):
        assert "outbox_failed" in plan or "outbox_group" in plan, plan
        assert "Seq Scan" not in plan


async def test_other_indexes_serve_too(bench: Bench) -> None:
    await many_delivered_and_few_failed(bench)
    own = "019a0000-0000-7000-8000-000000000000"

    assert "outbox_correlation" in await bench.plan(parse("corr:20"))
    assert "outbox_correlation" in await bench.plan(parse(f"corr:{own}"))
    quarantine = await bench.plan(parse("failed-at>2026-11-01"))
    assert "outbox_failed" in quarantine or "outbox_group" in quarantine
    for text in (f"id:{own}", "id:019a0", f"id:{own},{own[:-1]}1"):
        plan = await bench.plan(parse(text))
        assert "outbox_pkey" in plan or "sqlite_autoindex_redrive_outbox_1" in plan, plan


def _values(event: Batched) -> dict[str, Any]:
    return {name: getattr(event, name) for name in COLUMNS}
