"""Where a claim starts to look: never so far to the right that it misses an event, however late it commits (B5)."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from redrive.store.base import DUE_AT, GENERATION, PRIORITY, QUEUE, Lane, Row
from redrive.store.watermark import BEGINNING, FULL_EVERY_SECONDS, NEAR, Watermark

START = datetime(2030, 1, 1, tzinfo=UTC)
LANES: list[Lane] = [("a", 0, 0), ("a", 1, 0), ("b", 1, 0)]


@dataclass(slots=True, eq=False)
class Published:
    """A row, by the transaction that wrote it."""

    lane: Lane
    due: datetime
    xid: int
    state: str = "open"  # open, committed, aborted, claimed
    locked: bool = False

    def row(self) -> Row:
        row: list[Any] = [None] * 21
        row[QUEUE], row[PRIORITY], row[GENERATION] = self.lane
        row[DUE_AT] = self.due
        return row


@dataclass(slots=True)
class Table:
    """As much of PostgreSQL as a watermark knows: transaction ids, snapshots, and what they can see."""

    watermark: Watermark = field(default_factory=lambda: Watermark(LANES))
    micros: int = 0
    next_xid: int = 100
    rows: list[Published] = field(default_factory=list)

    @property
    def now(self) -> datetime:
        return START + timedelta(microseconds=self.micros)

    def publish(self, lane: Lane, delay_ms: int = 0) -> Published:
        made = Published(lane, self.now + timedelta(milliseconds=delay_ms), self.next_xid)
        self.next_xid += 1
        self.rows.append(made)
        return made

    def look(self, want: int, took: float = 0.0) -> list[Published]:
        # A snapshot's xmin: the lowest number that has not ended, or the one above the highest that has.
        running = [row.xid for row in self.rows if row.state == "open"]
        xmin = min(running, default=self.next_xid)
        number, self.next_xid = self.next_xid, self.next_xid + 1
        monotonic = self.micros / 1e6
        taken: list[Published] = []
        for lane, start in zip(LANES, self.watermark.starts(monotonic), strict=True):
            visible = [row for row in self.rows if row.state == "committed" and row.lane == lane and not row.locked]
            found = [row for row in visible if start <= row.due <= self.now]
            taken += sorted(found, key=lambda row: row.due)[: want - len(taken)]
        for row in taken:
            row.state = "claimed"
        now = self.now
        self.micros += int(took * 1e6)
        self.watermark.learn([row.row() for row in taken], want, now, (xmin, number), took, self.micros / 1e6)
        return taken

    def due(self) -> list[Published]:
        return [row for row in self.rows if row.state == "committed" and row.due <= self.now and not row.locked]


steps = st.lists(
    st.one_of(
        st.tuples(st.just("publish"), st.sampled_from(LANES), st.sampled_from([0, 0, 0, 1, 40, 700])),
        st.tuples(st.just("commit"), st.integers(0, 30), st.just(0)),
        st.tuples(st.just("abort"), st.integers(0, 30), st.just(0)),
        st.tuples(st.just("pass"), st.sampled_from([0, 1, 30, 60, 500, 4_000]), st.just(0)),
        st.tuples(st.just("look"), st.sampled_from([1, 2, 3, 100]), st.sampled_from([0.0, 0.001, 0.02])),
    ),
    max_size=80,
)


@pytest.mark.req("B5")
@settings(max_examples=400)
@given(steps=steps)
def test_however_publishers_commit_nothing_is_left_behind(steps: list[tuple[Any, Any, Any]]) -> None:
    table = Table()
    for verb, one, two in steps:
        open_ = [row for row in table.rows if row.state == "open"]
        if verb == "publish":
            table.publish(one, two)
        elif verb in ("commit", "abort") and open_:
            open_[one % len(open_)].state = "committed" if verb == "commit" else "aborted"
        elif verb == "pass":
            table.micros += one * 1_000
        elif verb == "look":
            was_due = table.due()
            looked_at = table.now
            taken = table.look(one, two)
            if table.watermark._thorough and len(taken) < one:
                assert set(taken) == set(was_due), "a thorough look with free hands takes all there is"
            assert all(lane.clear <= looked_at for lane in table.watermark._lanes)
        for row in table.rows:  # the bound never passes a row that is not claimed, visible or not
            lane = table.watermark._lanes[LANES.index(row.lane)]
            assert row.state in ("claimed", "aborted") or lane.clear <= row.due

    for row in table.rows:
        row.state = "committed" if row.state == "open" else row.state
    table.micros += 5_000_000
    for _ in range(len(table.rows) + 2):
        table.look(2, 0.001)
        table.micros += 100_000
    assert table.due() == []


@pytest.mark.req("B5")
def test_a_look_starts_near_where_the_claims_have_come_to() -> None:
    table = Table()
    table.look(10)
    for _ in range(100):
        table.publish(("a", 1, 0)).state = "committed"
        table.micros += 10_000
        assert len(table.look(10, 0.000_1)) == 1

    starts = table.watermark.starts(table.micros / 1e6)

    assert table.now - NEAR - timedelta(milliseconds=20) <= min(starts)


@pytest.mark.req("B5")
def test_a_long_writer_holds_the_bound_back_but_not_every_look() -> None:
    table = Table()
    table.look(10)
    long = table.publish(("a", 1, 0))
    near = 0
    for _ in range(200):
        table.publish(("a", 1, 0)).state = "committed"
        table.micros += 10_000
        assert len(table.look(10, 0.01)) == 1  # each costs something
        near += not table.watermark._thorough
    late = table.now

    long.state = "committed"
    looks = 0
    while long.state != "claimed":
        looks += 1
        table.micros += 10_000
        table.look(10, 0.01)

    assert near > 180
    assert table.now - late < timedelta(seconds=1)


@pytest.mark.req("B5")
def test_what_no_bound_covers_is_found_by_the_full_look() -> None:
    table = Table()
    moved = table.publish(("a", 1, 0))
    moved.state, moved.locked = "committed", True  # a stranger's lock; claims step over it
    for _ in range(50):
        table.micros += 100_000
        table.look(10)
    moved.locked = False
    moved.due = BEGINNING + timedelta(days=1)  # and by hand into the past

    missed = table.look(10)
    table.micros += int(FULL_EVERY_SECONDS * 1e6)
    found = table.look(10)

    assert (missed, found) == ([], [moved])


def test_a_full_look_that_fills_the_hands_goes_on_from_there() -> None:
    table = Table()
    for n in range(10):
        table.publish(("a", 1, 0)).state = "committed"
        table.micros += 1_000_000 * (n + 1)
    table.watermark = Watermark(LANES)

    taken = [len(table.look(3)) for _ in range(5)]

    assert taken == [3, 3, 3, 1, 0]


def test_a_lane_behind_one_that_fills_the_hands_is_looked_at_later() -> None:
    table = Table()
    for _ in range(6):
        table.publish(("a", 0, 0)).state = "committed"
        table.publish(("b", 1, 0)).state = "committed"
        table.micros += 1_000_000

    taken = [row.lane for _ in range(6) for row in table.look(2)]

    assert taken == [("a", 0, 0)] * 6 + [("b", 1, 0)] * 6
