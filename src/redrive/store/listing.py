"""Listing: pages of events, newest first, that cost the same in a table of five thousand rows and of five million."""

from dataclasses import dataclass, replace
from typing import Any, Final
from uuid import UUID

from redrive.errors import Refused
from redrive.event import Event, Status
from redrive.store.base import EVENT_COLUMNS, EventFilter, Store, event_from

ROWS_WALKED: Final = 10_000
ROWS_WALKED_AT_LENGTH: Final = 100_000

_ID_DIGITS: Final = 32
_MAYBE_FEW: Final = (Status.PENDING, Status.IN_FLIGHT, Status.BLOCKED)


@dataclass(frozen=True, slots=True)
class Page:
    """Some of the events a filter means, and from where to go on; without ``before`` that was the last of them."""

    events: list[Event]
    before: UUID | None = None


async def events(store: Store, wanted: EventFilter) -> list[Event]:
    """Read as many events of a filter as it asks for, newest first."""
    found: list[Event] = []
    rest = wanted
    while rest.limit > 0:
        some = await page(store, rest, walked=ROWS_WALKED_AT_LENGTH)
        found += some.events
        if some.before is None:
            break
        rest = replace(wanted, before=some.before, limit=wanted.limit - len(found))
    return found


async def page(store: Store, wanted: EventFilter, *, walked: int = ROWS_WALKED) -> Page:
    """Read some events of a filter, newest first, in a time that does not grow with the table.

    An index leads through the rows that may be meant; which of these are, is looked at row by row. No more than
    ``walked`` rows are looked at for one page, so that a rare thing among millions takes no longer than any other.
    """
    few = wanted.status in _MAYBE_FEW and await _few(store, wanted.status, walked)
    led, sifted, values = _conditions(wanted, few=few)
    floor = None
    if not few:
        found = await store.ask("events_floor", led, walked=walked, **values)
        floor = UUID(str(found[0]["id"])) if found else None
    where = [*led, *sifted, *(() if floor is None else ("and id >= :floor",))]
    parts = {"columns": ", ".join(EVENT_COLUMNS), "where": "\n".join(where), "order": "+id" if few else "id"}
    rows = await store.ask("events", parts, floor=floor, limit=wanted.limit, **values)
    events = [event_from(row) for row in rows]
    return Page(events, events[-1].id if len(events) == wanted.limit else floor)


async def delivered_lately(store: Store, target: str, limit: int) -> list[Event]:
    """Read some events that a target has delivered of late, however many others ended in between."""
    parts = {"columns": ", ".join(EVENT_COLUMNS)}
    rows = await store.ask("delivered_lately", parts, target=target, walked=ROWS_WALKED, limit=limit)
    return [event_from(row) for row in rows]


async def _few(store: Store, status: Status | None, walked: int) -> bool:
    return status is not None and bool(
        (await store.ask("events_few", {"status": status.value}, walked=walked))[0]["few"]
    )


def _conditions(wanted: EventFilter, *, few: bool) -> tuple[list[str], list[str], dict[str, Any]]:
    """Turn a filter into the conditions that an index serves, the others, and the values of all.

    Column names are ours, values are always bound. ``few``: all events of the status can be looked at.
    """
    led: list[str] = []
    sifted: list[str] = []
    values: dict[str, Any] = dict(wanted.values)
    if wanted.status is not None:  # written out, so that partial indexes can serve
        (led if few or wanted.status is Status.FAILED else sifted).append(f"and status = '{Status(wanted.status)}'")
    for name in ("type", "target", "error_class", "retry_key"):
        value = getattr(wanted, name)
        if value is not None:
            prefix = value.endswith("*")
            sifted.append(f"and substr({name}, 1, {len(value) - 1}) = :{name}" if prefix else f"and {name} = :{name}")
            values[name] = value[:-1] if prefix else value
    if wanted.fingerprint is not None:
        led.append("and fingerprint = :fingerprint")
        values["fingerprint"] = wanted.fingerprint
    if wanted.correlation_id is not None:
        itself = _uuid(wanted.correlation_id)  # the first event of a conversation has no correlation id but its own
        led.append(f"and (correlation_id = :correlation_id{'' if itself is None else ' or id = :itself'})")
        values |= {"correlation_id": wanted.correlation_id, "itself": itself}
    if wanted.id_prefix is not None:
        led.append("and id between :first_id and :last_id")
        values["first_id"], values["last_id"] = _between(wanted.id_prefix)
    if wanted.before is not None:
        led.append("and id < :before")
        values["before"] = wanted.before
    if wanted.discarded is not None:
        sifted.append(f"and deleted_at is {'not null' if wanted.discarded else 'null'}")
    return led, [*sifted, *wanted.clauses], values


def _uuid(text: str) -> UUID | None:
    try:
        return UUID(text)
    except ValueError:
        return None


def _between(id_prefix: str) -> tuple[UUID, UUID]:
    digits = id_prefix.replace("-", "").lower()
    if not digits or len(digits) > _ID_DIGITS or not set(digits) <= set("0123456789abcdef"):
        raise Refused(f"{id_prefix!r} is not the beginning of an event id: those are hexadecimal")
    return UUID(digits.ljust(32, "0")), UUID(digits.ljust(32, "f"))
