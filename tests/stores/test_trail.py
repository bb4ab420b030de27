"""The trail: append-only by the database's own refusal (A4), and chained so that going round that is found (B7)."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from redrive import Redrive
from redrive.clock import VirtualClock
from redrive.instant import to_micros
from redrive.trail import entry_hash
from tests.stores.helpers import Hands, failed, is_postgres, kinds, raw, retried

pytestmark = pytest.mark.promise("trail")

ODD = 'Zoë\nO\'Neil 🦉 "x" \\ \u2028 5:ann'


@pytest.mark.req("A4")
@pytest.mark.parametrize(
    "change",
    [
        "update {trail} set actor = 'nobody'",
        "update {trail} set hash = hash where seq = 1",
        "delete from {trail}",
        "delete from {trail} where seq = 1",
        "truncate {trail}",  # and what SQLite has instead: a replace, which asks no delete trigger
    ],
)
async def test_the_database_itself_refuses_to_change_the_trail(
    change: str, store_url: str, app: Redrive, hands: Hands
) -> None:
    if "truncate" in change and not is_postgres(store_url):
        change = "insert or replace into {trail} select chain, seq, 0, null, kind, '', 'nobody', '', '' from {trail}"
    dead = await hands.dead_letter()
    before = await app.trail(dead)

    with raw(store_url) as run, pytest.raises((psycopg.Error, sqlite3.Error), match="the trail is append-only"):
        run(change)

    assert await app.trail(dead) == before
    assert len(before) == 1


@pytest.mark.req("A4")
async def test_the_trail_tells_of_each_retry_and_of_the_dead_letter(
    app: Redrive, hands: Hands, clock: VirtualClock
) -> None:
    published = await app.publish("t", source="post_adjudication_retry")
    await hands.settle(retried(await hands.claim_one(), 2.5))
    clock.advance(2.5)
    await hands.settle(failed(await hands.claim_one()))

    first, second = await app.trail(published.id)

    assert (first.kind, first.source, first.actor) == ("retry-scheduled", "post_adjudication_retry", "hands")
    assert first.facts == {
        "attempt": 1, "outcome": "failed", "error_class": "dependency_unavailable",
        "error_type": "builtins.ConnectionError", "next_retry_at": "2030-01-01T00:00:02.500000Z",
    }  # fmt: skip
    assert (second.kind, second.chain, second.seq) == ("dead-lettered", str(hands.id), 2)
    assert second.facts == {
        "attempt": 2, "outcome": "failed", "error_class": "broken", "error_type": "builtins.OSError",
        "dead_lettered_at": "2030-01-01T00:00:02.500000Z",
    }  # fmt: skip


@pytest.mark.req("B7")
async def test_every_writer_has_a_chain_without_gaps_that_verifies(app: Redrive, hands: Hands) -> None:
    other = await Hands.begin(app)
    for worker in (hands, other, hands, other):
        dead = await worker.dead_letter()
        await app.replay(dead, by="ann", reason="mended")
        await worker.deliver(*await worker.claim())

    verdict = await app.verify_trail()

    assert (verdict.sound, verdict.entries) == (True, 8)
    assert {chain: seq for chain, (seq, _) in verdict.heads.items()} == {
        "operator": 4, str(hands.id): 2, str(other.id): 2,
    }  # fmt: skip
    await other.claims.close()


@pytest.mark.req("B7")
async def test_hashes_agree_whoever_wrote_them_and_whatever_is_in_them(app: Redrive, hands: Hands) -> None:
    dead = await hands.dead_letter(source=" ".join(ODD.split()))  # a name is on one line
    await app.replay(dead, by=ODD, reason=ODD)
    await app.cancel(dead, by=ODD, reason=ODD)
    await app.store.write_trail([(dead, "evidence-failed", ODD, ODD, {"error": ODD}), (None, "purged", "", ODD, {})])

    verdict = await app.verify_trail()
    entries = [entry async for entry in app.store.trail() if entry.chain == "operator"]

    assert (verdict.sound, verdict.entries) == (True, 5)
    previous = ""
    for entry in entries:
        previous = entry_hash(
            previous, entry.chain, entry.seq, to_micros(entry.at), entry.event_id, entry.kind, entry.source,
            entry.actor, entry.detail,
        )  # fmt: skip
        assert entry.hash == previous
    assert [(entry.kind, entry.actor) for entry in entries] == [
        (kind, ODD) for kind in ("replayed", "cancelled", "evidence-failed", "purged")
    ]
    assert entries[0].facts["reason"] == ODD


@pytest.mark.req("B7")
async def test_both_stores_write_the_same_hash_for_the_same_entry(postgres_url: str, sqlite_url: str) -> None:
    written = []
    for url in (postgres_url, sqlite_url):
        async with Redrive(url, clock=VirtualClock(), migrate=True) as app:
            event_id = (await app.publish("t")).id
            await app.store.write_trail([(event_id, "evidence-failed", ODD, ODD, {"error": ODD})] * 2)
            written.append([entry async for entry in app.store.trail()])

    assert written[0] == written[1]
    assert len(written[0]) == 2


# --- going round the refusal ------------------------------------------------------------------------


def without_guard(url: str, change: str) -> None:
    with raw(url) as run:
        if is_postgres(url):
            run("alter table {trail} disable trigger user")
        else:
            run("drop trigger redrive_trail_no_update")
            run("drop trigger redrive_trail_no_delete")
        run(change)


async def told(app: Redrive, hands: Hands) -> None:
    for _ in range(4):
        dead = await hands.dead_letter()
        await app.replay(dead, by="ann", reason="mended")
        await hands.deliver(*await hands.claim())


Expected = Callable[[str], str]
TAMPERING: dict[str, tuple[str, Expected]] = {
    "change who": ("update {trail} set actor = 'bob' where chain = 'operator' and seq = 2",
                   lambda _: "chain operator: entry 2 (replayed) was changed after it was written"),
    "change what": ("update {trail} set detail = '{{}}' where chain = 'operator' and seq = 4",
                    lambda _: "chain operator: entry 4 (replayed) was changed after it was written"),
    "change which": ("update {trail} set event_id = null where chain <> 'operator' and seq = 1",
                     lambda worker: f"chain {worker}: entry 1 (dead-lettered) was changed after it was written"),
    "change a hash": ("update {trail} set hash = 'x' where chain = 'operator' and seq = 4",
                      lambda _: "chain operator: entry 4 (replayed) was changed after it was written"),
    "delete the first": ("delete from {trail} where chain = 'operator' and seq = 1",
                         lambda _: "chain operator: entry 1 is missing (found 2)"),
    "delete in the middle": ("delete from {trail} where chain = 'operator' and seq = 3",
                             lambda _: "chain operator: entry 3 is missing (found 4)"),
}  # fmt: skip


@pytest.mark.req("B7")
@pytest.mark.parametrize("how", TAMPERING)
async def test_tampering_is_found_where_it_was_done(how: str, store_url: str, app: Redrive, hands: Hands) -> None:
    change, expected = TAMPERING[how]
    await told(app, hands)
    without_guard(store_url, change)

    verdict = await app.verify_trail()

    assert not verdict.sound
    assert verdict.problems[0] == expected(str(hands.id))


@pytest.mark.req("B7")
async def test_a_change_of_time_is_found(store_url: str, app: Redrive, hands: Hands) -> None:
    await told(app, hands)
    later = "at + interval '1 microsecond'" if is_postgres(store_url) else "at + 1"
    without_guard(store_url, f"update {{trail}} set at = {later} where chain = 'operator' and seq = 4")

    verdict = await app.verify_trail()

    assert verdict.problems == ["chain operator: entry 4 (replayed) was changed after it was written"]


@pytest.mark.req("B7")
@pytest.mark.parametrize("cut", ["seq = 4", "seq > 0"])
async def test_a_cut_tail_is_found_by_heads_that_were_noted(
    cut: str, store_url: str, app: Redrive, hands: Hands
) -> None:
    await told(app, hands)
    noted = (await app.verify_trail()).heads
    without_guard(store_url, f"delete from {{trail}} where chain = 'operator' and {cut}")

    alone, compared = await app.verify_trail(), await app.verify_trail(noted)

    assert alone.sound
    assert compared.problems == ["chain operator: ends before entry 4, which was noted"]


@pytest.mark.req("B7")
async def test_a_chain_that_was_written_anew_is_found_by_heads_that_were_noted(
    store_url: str, app: Redrive, hands: Hands, clock: VirtualClock
) -> None:
    await told(app, hands)
    noted = (await app.verify_trail()).heads
    without_guard(store_url, "delete from {trail} where chain = 'operator' and seq = 4")
    await app.store.write_trail([(None, "purged", "", "mallory", {})])

    alone, compared = await app.verify_trail(), await app.verify_trail(noted)

    assert alone.sound
    assert compared.problems == ["chain operator: entry 4 is not the one that was noted"]


@pytest.mark.req("B7")
async def test_a_trail_that_went_on_still_fits_the_noted_heads(app: Redrive, hands: Hands) -> None:
    await told(app, hands)
    noted = (await app.verify_trail()).heads
    await told(app, hands)

    verdict = await app.verify_trail(noted)

    assert verdict.sound
    assert verdict.entries == 16


async def test_a_trail_longer_than_a_page_is_read_whole(app: Redrive) -> None:
    entries: list[Any] = [(None, "purged", "", "ann", {"n": n}) for n in range(10_001)]
    await app.store.write_trail(entries)

    verdict = await app.verify_trail()

    assert (verdict.sound, verdict.entries) == (True, 10_001)


async def test_a_refused_act_leaves_no_entry(app: Redrive, hands: Hands) -> None:
    published = await app.publish("t")
    row = await hands.claim_one()
    await hands.deliver(row)

    await hands.settle(failed(row))

    assert await kinds(app, published.id) == []
