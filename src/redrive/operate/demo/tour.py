"""The tour: the shop goes on, things break, and whoever has opened the console is on call.

Nothing is faked here either: the carrier is really down, the dead letters are real, and a step is done when the store
says so. What the operator does is done with the console as it is; only what the team would do, like deploying a fix,
is a button of the tour.
"""

import asyncio
import hmac
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Final

from redrive.app import Redrive
from redrive.event import Event, Status
from redrive.operate import views
from redrive.operate.demo.crew import Crew
from redrive.operate.demo.shop import CARRIER, CARRIER_API, World
from redrive.store.base import EventFilter

PACE: Final = 1.0
_LOOK_SECONDS: Final = 0.4
_KEY_LENGTH: Final = 22  # of the 43 characters of a secret: 128 bits

_FIRST_ORDER: Final = 5_001
_AT_ONCE: Final = 40
_MOST_ORDERS: Final = 600
_ORDER_SECONDS: Final = 2.0
_INVOICES: Final = 100
_ONE_IN: Final = 3
_COMMAS: Final = len(range(1, _INVOICES, _ONE_IN))
_COMMAS_FROM: Final = "PT"
_OTHERS: Final = ("IE", "GB", "US", "AU")
# Which of the invoices with a comma the half of a fix cannot read either: one in the second step of the usual ramp.
_HARD: Final = (4, 13, 22, 31)
_HALF, _WHOLE = 2, 3
_INVOICE: Final = "invoice.requested"


@dataclass(frozen=True, slots=True)
class Facts:
    """How it stands, as the store says."""

    waiting: int = 0
    is_shut: bool = False
    group: str = ""
    dead: int = 0
    sample: str = ""
    other: str = ""
    redrive: str = ""
    state: str = ""
    release: int = 1
    is_begun: bool = False
    carrier_is_up: bool = False
    seen: frozenset[str] = field(default_factory=frozenset)


@dataclass(frozen=True, slots=True)
class Step:
    """One step: what to read, where to go or what to press, and when it is done."""

    title: str
    text: str
    is_done: Callable[[Facts], bool]
    place: str = ""
    way: str = ""
    verb: str = ""
    button: str = ""

    def path(self, facts: Facts) -> str:
        """Say where to go."""
        return self.place.format(facts=facts)


STEPS: Final[Sequence[Step]] = (
    Step(
        "The show is on in your terminal",
        "Watch it here, too: every page is live. When it ends, it is your turn.",
        lambda facts: facts.is_begun,
    ),
    Step(
        "The carrier has stopped answering",
        "{facts.waiting} orders need it, and wait. None of them spends an attempt, none becomes a dead letter. "
        "See why the circuit is open, and when it is looked at again.",
        lambda facts: "/dependencies" in facts.seen,
        place="/dependencies", way="See the dependencies",
    ),
    Step(
        "Let it answer again",
        "At the next probe the circuit closes by itself, and those who wait come back at a growing rate. "
        "{facts.waiting} wait.",
        lambda facts: facts.carrier_is_up and not facts.is_shut and not facts.waiting,
        place="/dependencies", way="See them come back", verb="carrier", button="Let the carrier answer",
    ),
    Step(
        "{facts.dead} invoices have failed for one reason",
        "Release 4 was built from an old branch. Its dead letters are one group, which had been resolved: it has "
        "regressed. Open it, and see which field sets them apart from what was delivered.",
        lambda facts: f"/failures/{facts.group}" in facts.seen,
        place="/failures/{facts.group}", way="Open the group",
    ),
    Step(
        "Mend the cause",
        "All of them come from one country, where 12.50 is written 12,50. The team has release 5 ready.",
        lambda facts: facts.release >= _HALF,
        verb="deploy", button="Deploy release 5",
    ),
    Step(
        "Send them round again, carefully",
        "On the page of the group press “Plan a redrive”. Say what was mended, and start it in steps of 1, 5, 25, 100: "
        "it goes on only while they are delivered.",
        lambda facts: facts.state in ("halted", "done"),
        place="/failures/{facts.group}", way="To the group",
    ),
    Step(
        "The redrive has halted itself",
        "The same failure came back in the second step: release 5 reads 12,50, and not 1.250,00. The others are what "
        "they were. Deploy release 6.",
        lambda facts: facts.release >= _WHOLE,
        place="/redrives/{facts.redrive}", way="See the redrive", verb="deploy", button="Deploy release 6",
    ),
    Step(
        "Go on with it",
        "On the page of the redrive press “Go on all the same”, and watch the rest go through. Whoever has aborted it "
        "plans another one.",
        lambda facts: facts.state == "done",
        place="/redrives/{facts.redrive}", way="To the redrive",
    ),
    Step(
        "Not quite empty: {facts.dead} to go",
        "What has failed on the ramp was not tried again. Open it, read what happened to it, and press “Replay”.",
        lambda facts: not facts.dead,
        place="/events/{facts.sample}", way="Open it",
    ),
    Step(
        "And one that nobody will deliver",
        "No carrier goes to Atlantis. Open it, press “Discard”, and say why; it can be restored.",
        lambda facts: not facts.other,
        place="/events/{facts.other}", way="Open it",
    ),
    Step(
        "The quarantine is empty",
        "All that you did is on the trail, with your name and your reasons. Ctrl-C in the terminal ends the demo; its "
        "file is kept.",
        lambda _facts: False,
        place="/audit", way="See the trail",
    ),
)  # fmt: skip


class Tour:
    """Leads through the console, and lets things happen to the shop meanwhile."""

    def __init__(self, url: str, app: Redrive, token: str, pace: float = PACE) -> None:
        self._url = url
        self._pace = pace
        self._app = app
        self._token = token
        self._key = app.clock.new_secret()[:_KEY_LENGTH]
        self._world = World(ailing={CARRIER})
        self._crew: Crew | None = None
        self._deploying = asyncio.Lock()
        self.facts = Facts()
        self.at = 0
        self.is_hidden = False

    # Coming in

    @property
    def way_in(self) -> str:
        """The path that lets one browser in; without the key once that has happened."""
        return f"/demo/{self._key}" if self._key else "/"

    def admit(self, key: str) -> str | None:
        """Take the key of the link, once; return the token that a browser gets a cookie for."""
        if not self._key or not hmac.compare_digest(self._key.encode(), key.encode()):
            return None
        self._key = ""
        return self._token

    # On every page

    def panel(self, path: str) -> dict[str, Any]:
        """Say which step it is; that a page was opened is noted."""
        self.facts = replace(self.facts, seen=self.facts.seen | {path})
        self._advance()
        step = STEPS[self.at]
        return {
            "number": self.at, "of": len(STEPS) - 1, "is_last": self.at == len(STEPS) - 1, "is_hidden": self.is_hidden,
            "title": step.title.format(facts=self.facts), "text": step.text.format(facts=self.facts),
            "path": step.path(self.facts), "way": step.way, "button": step.button, "verb": self._open_verb(step),
            "is_here": step.path(self.facts) == path,
        }  # fmt: skip

    def _open_verb(self, step: Step) -> str:
        return "" if step.verb == "carrier" and self.facts.carrier_is_up else step.verb

    def _advance(self) -> None:
        while STEPS[self.at].is_done(self.facts):
            self.at += 1

    async def press(self, verb: str) -> None:
        """Do what a button of the tour says, if it is its turn."""
        if verb in ("hide", "show"):
            self.is_hidden = verb == "hide"
        elif verb == "carrier" and self.facts.is_begun:
            self._world.ailing.discard(CARRIER)
            self.facts = replace(self.facts, carrier_is_up=True)
        elif verb == "deploy" and self._crew is not None and STEPS[self.at].verb == "deploy":
            async with self._deploying:
                if self._crew.release < _WHOLE:
                    await self._crew.deploy(self._crew.release + 1)
                self.facts = replace(self.facts, release=self._crew.release)
        self._advance()

    # What happens

    @asynccontextmanager
    async def going_on(self) -> AsyncIterator[None]:
        """Let the shop go on until the block ends."""
        crew = self._crew = Crew(self._url, self._world, release=1, pace=self._pace)
        async with crew.app:
            await self._trouble()
            crew.start()
            tasks = [asyncio.create_task(each) for each in (self._customers(), self._keep_looking())]
            try:
                yield
            finally:
                for each in tasks:
                    each.cancel()
                await asyncio.wait(tasks)
                await crew.stop()
                await crew.close()

    async def _trouble(self) -> None:
        """Have orders for a carrier that is down, and invoices that an old release cannot read."""
        drafts = [draft for number in range(_AT_ONCE) for draft in _order(_FIRST_ORDER + number)]
        commas = 0
        for number in range(_INVOICES):
            has_comma = number % _ONE_IN == 1
            drafts.append(_invoice(_FIRST_ORDER + number, commas if has_comma else None))
            commas += has_comma
        await self._app.publish_many(drafts)

    async def _customers(self) -> None:
        for number in range(_AT_ONCE, _MOST_ORDERS):
            await self._app.clock.sleep(_ORDER_SECONDS)
            await self._app.publish_many(_order(_FIRST_ORDER + number))

    async def _keep_looking(self) -> None:
        while True:
            self.facts = await self._look()
            self._advance()
            await self._app.clock.sleep(_LOOK_SECONDS)

    async def _look(self) -> Facts:
        app = self._app
        circuit = next((each for each in await views.dependencies(app) if each.of.name == CARRIER_API), None)
        group = next((each for each in await app.groups(everything=True) if each.target == _INVOICE), None)
        dead = await app.events(EventFilter(status=Status.FAILED))
        invoices = [each for each in dead if each.target == _INVOICE]
        others = [each for each in dead if each.target != _INVOICE]
        shut = circuit is not None and circuit.of.is_shut
        mine = next((each for each in await app.redrivings(limit=10) if each.started_by == YOU), None)
        return replace(
            self.facts,
            waiting=circuit.waiting if circuit else 0,
            is_shut=shut,
            group=group.short if group else "",
            dead=group.dead_count if group else 0,
            sample=_id_of(invoices),
            other=_id_of(others),
            redrive=str(mine.id) if mine else "",
            state=mine.state if mine else "",
            # Not before there is something to see: the circuit is open, and the invoices have failed.
            is_begun=self.facts.is_begun or (shut and len(invoices) >= _COMMAS),
        )


YOU: Final = "you"
"""Who opens the console of the demo."""


def _id_of(events: Sequence[Event]) -> str:
    return str(events[-1].id) if events else ""


def _order(number: int) -> list[tuple[str, Any, Any]]:
    options = {"correlation_id": f"order-{number}", "subject": f"order/{number}"}
    order = {"id": number, "customer": f"customer-{number % 40}", "city": "Porto", "total": "25.00"}
    return [
        ("order.paid", order, options),
        ("payment.captured", {"order": number, "amount": "25.00"}, options),
    ]


def _invoice(number: int, comma: int | None) -> tuple[str, Any, Any]:
    """Draft an invoice; the amount of one with a comma depends on which of them it is."""
    options = {"correlation_id": f"order-{number}", "subject": f"order/{number}"}
    if comma is None:
        amount, country = f"{12 + number % 70}.50", _OTHERS[number % len(_OTHERS)]
    else:
        amount, country = ("1.250,00" if comma in _HARD else f"{12 + number % 70},50"), _COMMAS_FROM
    return _INVOICE, {"order": number, "amount": amount, "country": country}, options
