"""The life of a batch: opened, filled, closed, and told of twice."""

from __future__ import annotations

import pytest

from redrive import Status
from tests.batch.helpers import Depot, notices


@pytest.mark.req("E8", "E2")
async def test_both_notices_come_once_with_totals_groups_and_reasons(depot: Depot) -> None:
    batch = await depot.app.batches.open("import of Monday")
    await batch.add("parcel", {}, group="north", subject="p1")
    await batch.add("parcel", {"fails": 1}, group="north", subject="p2")
    await batch.add("parcel", {"refused": True}, group="south", subject="p3")
    await batch.add_many([("parcel", {}, {"batch_group": "west"}), ("parcel", {"inside": True})])
    await depot.drain()
    assert depot.told == []
    assert await batch.close()
    assert not await batch.close()
    await depot.drain()

    assert sorted(depot.kinds()) == ["final", "first"]
    final = next(each for each in depot.told if each.kind == "final")
    assert (final.total, final.delivered, final.failed, final.cancelled, final.leftover) == (5, 4, 1, 0, 0)
    assert (final.recovered, final.by_class, final.forced) == (1, {"rejected": 1}, False)
    assert final.by_group == {"complete": 2, "failed": 1, "partly": 0}
    (failure,) = final.failures
    assert (failure.subject, failure.group, failure.error_class) == ("p3", "south", "rejected")
    assert failure.reason == "redrive.errors.Rejected: the recipient refuses it" or "refuses" in failure.reason
    look = await batch.look()
    assert (look.batch.state, look.batch.final, look.total, look.live) == ("done", final, 5, 0)
    assert look.counts[Status.DELIVERED] == 4
    assert await notices(depot.app, batch) == ["first", "final"]
