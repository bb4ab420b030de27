"""Shell: what all pages of the console have around them, and what their routes share."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import parse_qs, urlencode

from fastapi import APIRouter, Depends, Request
from starlette.responses import RedirectResponse, Response

from redrive.operate.auth import ALLOWED, Caller, How
from redrive.operate.console import glance
from redrive.operate.console.words import FILTERS, printed
from redrive.operate.web import pages
from redrive.operate.web.changes import Changes, written
from redrive.operate.web.guard import Guarded
from redrive.operate.web.problems import INVALID, Problem

MOST_FIELDS: Final = 300
SHOWN: Final = 50
"""How many rows a list shows at once."""


@dataclass(frozen=True, slots=True)
class Screen:
    """A place in the menu; ``key`` follows a ``g``."""

    path: str
    name: str
    key: str


SCREENS: Final[Mapping[str, Sequence[Screen]]] = {
    "": (
        Screen("/", "Overview", "o"),
        Screen("/attention", "Needs a person", "n"),
        Screen("/failures", "Failures", "f"),
        Screen("/events", "Events", "e"),
        Screen("/redrives", "Redrives", "r"),
    ),
    "Together": (Screen("/batches", "Batches", "b"), Screen("/tasks", "Tasks", "t")),
    "Waiting": (
        Screen("/keys", "Blocked keys", "k"),
        Screen("/dependencies", "Dependencies", "d"),
        Screen("/reservations", "Reservations", "v"),
    ),
    "Running": (
        Screen("/workers", "Workers", "w"),
        Screen("/transports", "Transports", "m"),
        Screen("/schedules", "Schedules", "s"),
        Screen("/reconcilers", "Reconcilers", "c"),
        Screen("/policies", "Policies", "p"),
    ),
    "Record": (Screen("/audit", "Audit", "a"), Screen("/problems", "Problems", "x")),
}
"""The menu: every screen has its place here."""

NOTICES: Final[Mapping[str, str]] = {
    "replay": "Replayed: it goes round again.",
    "propose": "Kept. It goes when a second person approves it.",
    "edit": "Replayed with the new payload; the original is kept as a revision.",
    "cancel": "Called off.",
    "discard": "Discarded. It can be restored.",
    "restore": "Restored to the quarantine.",
    "many-discard": "{n} dead letters were discarded. They can be restored.",
    "many-restore": "{n} dead letters were restored to the quarantine.",
    "many-cancel": "{n} events were called off.",
    "describe": "Written down.",
    "plan": "Planned. Nothing moves until it is started.",
    "start": "Started. The workers carry it on.",
    "approve": "Approved.",
    "pause": "Paused. Nothing more is released.",
    "resume": "Going on.",
    "abort": "Aborted. What was not released is what it was.",
    "release": "Released: those behind the dead letter go on.",
    "skip": "Skipped: the dead letter is discarded and the next one goes on.",
    "open": "Opened: events that need it wait.",
    "close": "Closed: those who wait come back, at a growing rate.",
    "hold": "On hold: its events wait.",
    "lift": "Lifted: those who wait come back, at a growing rate.",
    "set": "Set. Workers take notice within seconds.",
    "clear": "Taken back: the handlers go by what they say themselves.",
    "batch-close": "Closed: nothing can be added, and the notices come when they are due.",
    "batch-force": "The notices are sent. What is left goes on.",
    "schedule-pause": "Paused: it ticks no more until somebody resumes it.",
    "schedule-resume": "It ticks again, from now on.",
    "schedule-run": "Published: one event more. The ticks stay as they are.",
    "take-away": "Taken away: what its holder writes under its token is refused from now on.",
    "reconcile": "Asked for: a worker runs it, and this page shows what it found.",
    "reconcile-known": "A run is asked for or under way already.",
    "ignore": "It may stay. Should it go and come back, it is a finding again.",
    "republish": "{n} events will be sent once more, behind live work.",
}
"""What a page says after something was done; only the word travels in the address."""

pages.environment.filters.update(FILTERS)
pages.environment.finalize = printed


def new_router() -> APIRouter:
    """Make a router for pages."""
    before = [Depends(_marked), Depends(glance.refreshed)]
    return APIRouter(route_class=Guarded, include_in_schema=False, dependencies=before)


async def _marked(request: Request) -> None:
    """Note how things stand before a page looks at them: it is told of what changes from here on."""
    changes: Changes = request.app.state.changes
    request.state.marks = await changes.marks() if request.method == "GET" else {}


def page(
    request: Request, template: str, caller: Caller, *, here: str, topics: Sequence[str] = (), status: int = 200,
    **context: Any,
) -> Response:  # fmt: skip
    """Draw a page. It is fetched anew when something of its topics changes."""
    tour = _tour(request)
    if tour is not None and topics:
        topics = (*topics, "outbox")  # what the tour waits for happens to events
    return pages.render(
        request, template, status, tour=tour, caller=caller, can=frozenset(map(str, ALLOWED[caller.role])), here=here,
        screens=SCREENS, topics=" ".join(topics), since=written(request.state.marks, topics),
        now=request.app.state.redrive.clock.now(), notice=_notice(request), is_open=caller.how is How.OPEN,
        glance=glance.of(request), **context,
    )  # fmt: skip


def _tour(request: Request) -> Mapping[str, Any] | None:
    """Say where the tour of the demo stands; elsewhere there is none."""
    found = getattr(request.app.state, "tour", None)
    return None if found is None else {**found.panel(pages.inner_path(request)), "back": pages.here(request)}


def _notice(request: Request) -> str:
    said = NOTICES.get(request.query_params.get("did", ""), "")
    number = request.query_params.get("n", "")
    return said.replace("{n}", f"{int(number):,}" if number.isdecimal() and len(number) < 10 else "The")  # noqa: PLR2004


def done(request: Request, path: str, did: str, **more: object) -> Response:
    """Go on to a page that says what was done."""
    query = urlencode({**{name: value for name, value in more.items() if value is not None}, "did": did})
    return RedirectResponse(f"{pages.root(request)}{path}?{query}", 303)


@dataclass(frozen=True, slots=True)
class Form:
    """The fields of a form."""

    values: Mapping[str, Sequence[str]]

    def __getitem__(self, name: str) -> str:
        return self.values.get(name, ("",))[-1].strip()

    def has(self, name: str) -> bool:
        """Say whether a box was ticked, or anything written."""
        return bool(self[name])

    def all(self, name: str) -> list[str]:
        """Return every value of a name."""
        return [each for each in self.values.get(name, ()) if each]


async def form(request: Request) -> Form:
    """Read a form."""
    found = fields((await request.body()).decode("utf-8", "replace"))
    if any("\0" in each for values in found.values() for each in values):
        raise Problem(INVALID, "a field holds NUL: no database has a place for it")
    return Form(found)


def fields(text: str) -> Mapping[str, Sequence[str]]:
    """Read fields as a browser sends them."""
    try:
        return parse_qs(text, keep_blank_values=True, max_num_fields=MOST_FIELDS)
    except ValueError:
        return {}


def link(path: str, **query: object) -> str:
    """Write an address below the root; what is nothing is left out."""
    said = {name: value for name, value in query.items() if value not in (None, "", False)}
    return f"{path}?{urlencode(said)}" if said else path


pages.environment.globals["link"] = link
