"""Notices: tell people, once, of what they should know.

A matter is something that came true: a new cause of dead letters, one that came back, a redrive that halted, a
dependency that is down. Every worker looks now and then; whoever finds a matter that nobody has been told of notes
that, and publishes one event for each address, in the same transaction. The rest is what becomes of every event: it is
retried, and a dead letter if it cannot be sent. Nobody's delivery waits for it.

There are so many notices an hour at most; when several matters come at once, one notice tells of them all.
"""

import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Final
from uuid import UUID

from redrive import check, dependency, group
from redrive.classify import DEFAULT_RULES
from redrive.clock import Clock
from redrive.deliver import Handler, handler_from
from redrive.dependency import Dependency, Kind, State
from redrive.duty import Duty, Tick
from redrive.errors import ConfigurationError, MissingDriver
from redrive.event import NewEvent
from redrive.group import Group
from redrive.logs import log
from redrive.mask import DEFAULT, Mask
from redrive.policy import RetryPolicy
from redrive.redrive import Redriving, redriving_from
from redrive.store.base import Store

NOTICE: Final = "redrive.notice"
"""The type of the events that tell people something."""

KINDS: Final = ("group-new", "group-regressed", "redrive-halted", "dependency-opened", "dependency-closed")
ENVIRONMENT: Final = "REDRIVE_NOTICES"
_LONGEST_URL: Final = 2_000
_MOST_AN_HOUR: Final = 1_000_000

_OPENED: Final = "dependency-opened:"
_MEMORY: Final = "notices_told"
_LOOK_SECONDS: Final = 5.0
_HOUR: Final = 3_600.0
_RECENT: Final = 7 * 86_400.0
_TOGETHER: Final = 5  # more matters than this at once are told in one notice
_LISTED: Final = 20
_MOST_GROUPS: Final = 1_000
_MOST_REDRIVES: Final = 100
_RETRY: Final = RetryPolicy(max_attempts=8, base_delay="5s", max_delay="10m")
_TIMEOUT: Final = 60.0


@dataclass(frozen=True, slots=True)
class Matter:
    """Something to be told of: what makes it the same when it is seen again, and what it is for people."""

    key: str
    kind: str
    title: str
    body: str
    told: bool = True  # false: it is known and stays unsaid, because somebody has muted it
    quotes: UUID | None = None  # the event whose error it repeats


@dataclass(slots=True)
class _Memory:
    """What has been told, and when notices went out lately; kept as a setting, in the database."""

    told: dict[str, float] = field(default_factory=dict)
    sent: list[float] = field(default_factory=list)

    @classmethod
    def read(cls, rows: Sequence[Mapping[str, Any]], now: float) -> "_Memory":
        kept = json.loads(rows[0]["value"]) if rows else {}
        return cls(kept.get("told", {}), [at for at in kept.get("sent", []) if now - at < _HOUR])

    def written(self) -> str:
        return json.dumps({"told": self.told, "sent": self.sent})


class Notices:
    """Whom to tell, and of what."""

    def __init__(
        self, ready: Callable[[], Any], clock: Clock, new_events: Callable[..., list[NewEvent]], mask: Mask = DEFAULT
    ) -> None:
        self._ready = ready
        self._clock = clock
        self._new_events = new_events
        self._mask = mask
        self.addresses = 0
        self._on: tuple[str, ...] = KINDS
        self._most_an_hour = 30

    def to(self, urls: Sequence[str], *, on: Sequence[str], most_an_hour: int) -> list[Handler]:
        """Take the addresses; return what sends to each. They hold secrets, and are stored and logged nowhere."""
        unknown = [each for each in check.texts(on, "on", like=KINDS[0]) if each not in KINDS]
        if unknown:
            raise ConfigurationError(f"notices know nothing of {unknown}: on=… takes some of {', '.join(KINDS)}")
        if self.addresses:
            raise ConfigurationError("notices are set up already: name all addresses in one call")
        given = [*urls] or os.environ.get(ENVIRONMENT, "").split()
        if not given:
            raise ConfigurationError(f"notices need an address: app.notices('slack://…'), or {ENVIRONMENT}")
        check.texts(given, "urls", like="slack://…", limit=_LONGEST_URL)
        check.whole(most_an_hour, "most_an_hour", 1, _MOST_AN_HOUR)
        senders = [_sender(url, place) for place, url in enumerate(given, 1)]
        self.addresses, self._on, self._most_an_hour = len(given), tuple(on), most_an_hour
        return senders

    def duties(self) -> list[Duty]:
        """List what workers do for it."""
        return [Duty("notices", self._look)] if self.addresses else []

    async def _look(self, by: str) -> Tick:
        """Find what nobody has been told of. Most looks find nothing, and write nothing."""
        store: Store = await self._ready()
        current = await self._matters(store)
        memory = _Memory.read(await store.ask("setting_get", name=_MEMORY), self._now())
        if not self._news(current, memory) and memory.told.keys() <= {each.key for each in current}:
            return Tick(moved=False, pause=_LOOK_SECONDS)
        return Tick(await self._tell(store, by), _LOOK_SECONDS)

    def _now(self) -> float:
        return self._clock.now().timestamp()

    def _news(self, current: Iterable[Matter], memory: _Memory) -> list[Matter]:
        """Say what is to be told: what is not muted and was not told, and what was down and is back."""
        news = [each for each in current if each.told and each.key not in memory.told and each.kind in self._on]
        here = {each.key for each in current}
        back = [key for key in memory.told if key.startswith(_OPENED) and key not in here]
        return news + [_back(key) for key in back if "dependency-closed" in self._on]

    async def _tell(self, store: Store, by: str) -> bool:
        async with store.transaction() as tx:
            await tx.run("setting_lock", name=_MEMORY)  # from here on nobody else tells of anything
            now, current = self._now(), await self._matters(store)
            memory = _Memory.read(await tx.run("setting_get", name=_MEMORY), now)
            news = [await self._hidden(store, each) for each in self._news(current, memory)]
            room = self._most_an_hour - len(memory.sent)
            if news and room <= 0:
                log.warning("notices wait: there were enough this hour", worker=by, matters=len(news))
                return False
            if len(news) > min(room, _TOGETHER):
                notices = [_together(news)]
            else:
                notices = [_payload(each.kind, each.title, each.body) for each in news]
            here = {each.key for each in current}
            memory.told = {key: at for key, at in memory.told.items() if key in here}
            memory.told |= {each.key: now for each in news if each.key in here}
            memory.sent += [now] * len(notices)
            await tx.run("setting_set", name=_MEMORY, value=memory.written(), by=by)
            for each in notices:
                await tx.publish(self._new_events(NOTICE, each))
        return bool(notices)

    async def _hidden(self, store: Store, matter: Matter) -> Matter:
        """Hide what is secret in the event that a matter quotes: a notice leaves the house."""
        event = None if matter.quotes is None else await store.event(matter.quotes)
        secrets = () if event is None else self._mask.secrets(event.payload, event.headers)
        return replace(matter, body=self._mask.text(matter.body, secrets))

    async def _matters(self, store: Store) -> list[Matter]:
        """Ask what is true now. Bounded: the latest thousand groups of a week, the latest hundred redrives."""
        now = self._clock.now()
        found = []
        for state in ("new", "regressed"):
            groups = await group.groups(store, everything=True, state=state, limit=_MOST_GROUPS)
            recent = (each for each in groups if (now - each.last_seen_at).total_seconds() < _RECENT)
            found += [_of_group(each, now) for each in recent if not each.target.startswith(NOTICE)]
        redrives = await store.ask("redrives", before=None, limit=_MOST_REDRIVES)
        found += [_of_redrive(redriving_from(row)) for row in redrives if row["state"] == "halted"]
        known = await dependency.standing(store, {})
        return found + [_of_dependency(each) for each in known if each.is_shut and each.kind is not Kind.HOLD]


# --- what people read ---


def _of_group(each: Group, now: datetime) -> Matter:
    came = "A new failure" if each.state == "new" else "A failure that was resolved is back"
    many = f"{each.dead_count:,} dead letter{'s' if each.dead_count != 1 else ''}"
    body = (
        f"{each.title}\n\n{many}, class {each.error_class}, first seen {each.first_seen_at:%Y-%m-%d %H:%M} UTC.\n"
        f"Look: redrive groups show {each.short}"
    )
    key = f"group-{each.state}:{each.fingerprint}"
    quiet = each.is_muted(now) or each.dead_count == 0
    return Matter(
        key, f"group-{each.state}", f"{came} in {each.target}", body, told=not quiet, quotes=each.sample_event_id
    )


def _of_redrive(each: Redriving) -> Matter:
    body = (
        f"{each.sentence}\n\n{each.stop_reason}. {each.delivered:,} of {each.ready:,} were delivered, "
        f"{each.untouched:,} were not touched.\nLook: redrive redrives report {each.id}"
    )
    return Matter(f"redrive-halted:{each.id}:{each.released}", "redrive-halted", "A redrive has halted", body)


def _of_dependency(each: Dependency) -> Matter:
    if each.kind is Kind.BRAKE:
        title = f"Nearly everything of {each.name.removeprefix(dependency.BRAKE)} fails"
    else:
        title = f"{each.name} is {'degraded' if each.state is State.DEGRADED else 'down'}"
    body = f"{each.reason}.\nWhat needs it waits, and comes back by itself. Look: redrive deps ls"
    since = "" if each.opened_at is None else each.opened_at.isoformat()
    return Matter(f"{_OPENED}{each.name}@{since}", "dependency-opened", title, body)


def _back(key: str) -> Matter:
    name = key.removeprefix(_OPENED).rpartition("@")[0].removeprefix(dependency.BRAKE)
    return Matter(key, "dependency-closed", f"{name} works again", "What waited for it comes back at a bounded rate.")


def _together(news: Sequence[Matter]) -> dict[str, str]:
    lines = [f"- {each.title}: {each.body.partition(chr(10))[0][:120]}" for each in news[:_LISTED]]
    if len(news) > _LISTED:
        lines.append(f"- and {len(news) - _LISTED:,} more")
    body = "\n".join([*lines, "Look: redrive top, redrive groups ls"])
    return _payload("several", f"{len(news):,} matters need attention", body)


def _payload(kind: str, title: str, body: str) -> dict[str, str]:
    return {"kind": kind, "title": title, "body": body}


# --- sending ---


def _sender(url: str, place: int) -> Handler:
    """Make the handler of one address; each has retries of its own, so that no other is told twice."""
    try:
        import apprise  # noqa: PLC0415 - an extra: imported when it is asked for
    except ModuleNotFoundError as error:
        raise MissingDriver("notices need Apprise: pip install 'redrive[notices]'") from error
    scheme = url.partition("://")[0]
    # One service, called in the handler's own thread: Apprise's list of services has a pool of threads that never ends.
    service: Any = apprise.Apprise.instantiate(url)
    if service is None:
        raise ConfigurationError(f"address {place} of the notices ({scheme}://…) is none that Apprise can read")

    def send(notice: dict[str, str]) -> None:
        failed = notice.get("kind") != "dependency-closed"
        text = apprise.NotifyFormat.TEXT
        level = apprise.NotifyType.WARNING if failed else apprise.NotifyType.SUCCESS
        if not service.notify(
            title=f"Redrive: {notice['title']}", body=notice["body"], notify_type=level, body_format=text
        ):
            message = f"{scheme}://… did not take the notice"
            raise ConnectionError(message)

    return handler_from(
        send, types=(NOTICE,), target=f"{NOTICE}:{place}", retry=_RETRY, rules=DEFAULT_RULES, on_dead_letter=None,
        timeout=_TIMEOUT, brake=False,
    )  # fmt: skip
