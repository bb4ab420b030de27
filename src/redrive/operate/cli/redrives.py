"""`redrive redrives`: those that ran, that run, and that are planned; watch, stop and judge them."""

from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from datetime import datetime
from enum import StrEnum
from typing import Annotated, Any, Final

import typer
from rich.console import Group, RenderableType
from rich.text import Text

from redrive.app import Redrive
from redrive.errors import Refused
from redrive.instant import iso
from redrive.operate import actions, views
from redrive.operate.cli import show
from redrive.operate.cli.events import LimitOption
from redrive.operate.cli.follow import Moment, follow_to_the_end, no_worker, outcome
from redrive.operate.cli.outcome import BadInput, NothingMatched, say
from redrive.operate.cli.shared import (
    ByOption,
    Output,
    OutputOption,
    ReasonOption,
    UrlOption,
    actor,
    existing,
    reason_from,
    run,
    url_from,
)
from redrive.operate.cli.text import clean, clock_time, day, one_line, plural, span, when
from redrive.operate.views import Item, Report
from redrive.redrive import Redriving
from redrive.setting import Setting

app = typer.Typer(
    help="Redrives: list, watch, pause, resume, abort, approve, report.",
    no_args_is_help=True,
)

RedriveArgument = Annotated[str, typer.Argument(metavar="ID", help="The id of a redrive, or a unique beginning of it.")]

_COLOURS: Final = {
    "planned": "dim", "running": "cyan", "paused": "yellow", "halted": "bold red", "done": "green",
    "aborted": "magenta",
}  # fmt: skip
_OUTCOMES: Final = (
    ("delivered", "DELIVERED"), ("failed_same", "SAME"), ("failed_other", "OTHER"), ("skipped", "SKIPPED"),
    ("ineligible", "NOT ELIGIBLE"),
)  # fmt: skip


class ItemState(StrEnum):
    """What can have become of a member."""

    READY = "ready"
    INELIGIBLE = "ineligible"
    RELEASED = "released"
    DELIVERED = "delivered"
    FAILED_SAME = "failed_same"
    FAILED_OTHER = "failed_other"
    SKIPPED = "skipped"


# --- looking ---


@app.command("ls")
def ls(ctx: typer.Context, limit: LimitOption = 50, output: OutputOption = Output.TABLE, url: UrlOption = None) -> None:
    """List redrives, newest first. A single replay is a redrive of one."""
    run(_list(url_from(ctx, url), limit, output))


async def _list(url: str, limit: int, output: Output) -> None:
    async with existing(url) as app_:
        found = await app_.redrivings(limit=limit)
        now = app_.clock.now()
    if output is Output.TABLE and not found:
        show.put_line("No redrives.")
        show.hint("`redrive plan SELECTION` makes one.")
        return
    show.listing(found, output, views.redriving_json, lambda shown: _table(shown, now))


def _table(found: Sequence[Redriving], now: datetime) -> RenderableType:
    ids = show.short_ids(found)
    rows = [
        (
            ids[each.id],
            state_text(each.state),
            when(each.started_at or each.planned_at, now),
            f"{each.ready:,}",
            f"{each.delivered:,}",
            f"{each.failed:,}",
            one_line(each.started_by or each.planned_by, 20),
            one_line(_what(each), 200),
        )
        for each in found
    ]
    columns = ("ID", "STATE", "SINCE", "READY", "DELIVERED", "FAILED", "BY", "WHAT")
    return show.table(columns, rows, wide="WHAT", right="READY", spare=("BY", "SINCE"))


def _what(each: Redriving) -> str:
    waits = "an edited payload waits for approval: " if each.edited and each.state == "planned" else ""
    return waits + (each.reason or each.sentence)


def state_text(state: str) -> Text:
    """Colour a state."""
    return Text(state, style=_COLOURS.get(state, ""))


@app.command("show")
def show_one(
    ctx: typer.Context, redrive_id: RedriveArgument, output: OutputOption = Output.TABLE, url: UrlOption = None
) -> None:
    """Show one redrive: what was planned, by whom and why, and how it stands."""
    standing, changes, now = run(_shown(url_from(ctx, url), redrive_id))

    def told(each: Redriving) -> dict[str, Any]:
        return {**views.redriving_json(each), "changes": changes}

    show.single(standing, output, told, lambda each: show.facts_sheet([*_facts(each, now), *_changes(changes)]))


async def _shown(url: str, text: str) -> tuple[Redriving, list[dict[str, Any]], datetime]:
    async with existing(url) as app_:
        standing = await views.find_redrive(app_, text)
        found = await views.proposed(app_, standing)
        return standing, [each.to_json() for each in found[1]] if found else [], app_.clock.now()


def _changes(changes: Sequence[Mapping[str, Any]]) -> Iterable[tuple[str, str]]:
    """Say what an edit would change: that is what a second person agrees with."""
    for each in changes:
        before, after = (show.json_text(each[name]) if name in each else "nothing" for name in ("before", "after"))
        yield "edit", one_line(f"{each['field']}: {before} → {after}", 400)


def _facts(each: Redriving, now: datetime) -> Iterable[tuple[str, str | Text | None]]:
    yield "id", str(each.id)
    yield "state", state_text(each.state)
    if each.state in ("paused", "halted", "aborted"):
        yield "stopped", f"by {each.stopped_by}: {one_line(each.stop_reason or 'no reason given', 300)}"
    yield "what", one_line(each.sentence, 1_000)
    yield "selection", one_line(each.selection, 1_000)
    yield "planned", f"{_instant(each.planned_at, now)} by {one_line(each.planned_by, 100)}"
    if each.state == "planned":
        yield "expires", _instant(each.expires_at, now)
        yield ("token", None if each.edited else each.token)
        if each.edited:
            yield "waits for", f"the approval of somebody else than {one_line(each.planned_by, 100)}"
    yield "approved", each.approved_by and f"by {one_line(each.approved_by, 100)}"
    if each.started_at is not None:
        yield "started", f"{_instant(each.started_at, now)} by {one_line(each.started_by or '', 100)}"
    yield "reason", each.reason and one_line(each.reason, 1_000)
    yield "ended", None if each.ended_at is None else _instant(each.ended_at, now)
    yield "members", f"{each.total:,}, of which {each.ready:,} were ready to go"
    if each.started_at is not None:
        yield "release", _release(each)
        yield "outcome", Moment(each, 0.0).line


def _release(each: Redriving) -> str:
    rate = "at full speed" if each.rate is None else f"{each.rate:g} a second"
    stages = f", in a ramp of {', '.join(map(str, each.ramp))}" if each.ramp else ""
    halts = ", never halting" if each.halt_at is None else f", halting above {each.halt_at:.0%} failures"
    generation = "" if each.generation is None else f", as generation {each.generation}"
    anew = ", from the start" if each.from_start else ""
    return f"{rate}, at most {each.max_in_flight:,} in flight{stages}{halts}{generation}{anew}"


def _instant(at: datetime, now: datetime) -> str:
    return f"{day(at)} {clock_time(at)[:8]} UTC ({when(at, now)})"


@app.command("watch")
def watch(
    ctx: typer.Context, redrive_id: RedriveArgument, output: OutputOption = Output.TABLE, url: UrlOption = None
) -> None:
    """Follow a redrive to its end. Ctrl-C ends the watching, not the redrive."""
    database = url_from(ctx, url)
    standing, _now = run(_with(database, redrive_id, _watchable))
    follow_to_the_end(database, standing, output)


async def _watchable(_app: Redrive, standing: Redriving) -> Redriving:
    if standing.state == "planned":
        raise Refused(f"redrive {standing.id} is only planned: `redrive run` starts it, with the token of its plan")
    return standing


@app.command("items")
def items(
    ctx: typer.Context,
    redrive_id: RedriveArgument,
    state: Annotated[ItemState | None, typer.Option("--state", "-s", help="Only those in this state.")] = None,
    limit: Annotated[
        int | None, typer.Option("--limit", "-n", min=1, help="At most so many; 50 in a table, else all.")
    ] = None,
    output: OutputOption = Output.TABLE,
    url: UrlOption = None,
) -> None:
    """List the members of a redrive and what became of each; -o jsonl downloads all of them."""
    run(_items(url_from(ctx, url), redrive_id, state, limit, output))


async def _items(url: str, text: str, state: ItemState | None, limit: int | None, output: Output) -> None:
    most = 50 if limit is None and output is Output.TABLE else limit
    kept: list[Item] = []
    count = 0
    async with existing(url) as app_:
        standing = await views.find_redrive(app_, text)
        async for item in views.items(app_, standing.id):
            if state is not None and item.state != state:
                continue
            if count == most:
                break
            count += 1
            if output is Output.JSONL:
                print(show.json_text(item.to_json()))
            else:
                kept.append(item)
        now = app_.clock.now()
    if output is Output.JSON or (output is Output.TABLE and kept):
        show.listing(kept, output, lambda item: item.to_json(), lambda shown: _items_table(shown, now))
    if not count and state is not None:
        raise NothingMatched(f"no members are {state}")
    if output is Output.TABLE and count == most:
        show.hint(f"The first {count:,} are shown; --limit shows more, -o jsonl all.")


def _items_table(found: Sequence[Item], now: datetime) -> RenderableType:
    rows = [
        (
            f"{item.position:,}",
            str(item.event_id),
            item.state.replace("_", " "),
            "" if item.stage is None else str(item.stage + 1),
            "" if item.ended_at is None else when(item.ended_at, now),
            one_line(item.reason or "", 200),
        )
        for item in found
    ]
    columns = ("NO", "EVENT", "STATE", "STAGE", "ENDED", "REASON")
    return show.table(columns, rows, wide="REASON", right="NO", spare=("STAGE", "ENDED"))


@app.command("report")
def report(
    ctx: typer.Context, redrive_id: RedriveArgument, output: OutputOption = Output.TABLE, url: UrlOption = None
) -> None:
    """Say in words what a redrive has brought, and what became of every group."""
    told, now = run(_report(url_from(ctx, url), redrive_id))
    show.single(told, output, lambda each: each.to_json(), lambda each: _report_sheet(each, now))


async def _report(url: str, text: str) -> tuple[Report, datetime]:
    async with existing(url) as app_:
        with show.progress("counting"):
            return await views.report(app_, await views.find_redrive(app_, text)), app_.clock.now()


def _report_sheet(told: Report, now: datetime) -> RenderableType:
    parts: list[RenderableType] = [Text(clean(each)) for each in _summary(told, now)]
    if told.groups:
        parts += ["", _groups_table(told)]
    reasons = [("skipped", told.skipped), ("not eligible", told.ineligible)]
    rows = [(f"{n:,}", kind, one_line(why, 200)) for kind, counts in reasons for why, n in counts.items()]
    if rows:
        parts += ["", show.table(("COUNT", "DID NOT GO", "WHY"), rows, wide="WHY", right="COUNT")]
    failed = [fingerprint for fingerprint, _group, states in told.groups if fingerprint and _failures(states)]
    if failed:
        parts += ["", Text(f"Next: redrive groups show {failed[0].partition(':')[2][:8]}", style="dim")]
    return Group(*parts)


def _failures(states: Mapping[str, int]) -> int:
    return states.get("failed_same", 0) + states.get("failed_other", 0)


def _summary(told: Report, now: datetime) -> Iterable[str]:
    each = told.redrive
    yield f"Redrive {each.id}: {one_line(each.sentence, 500)}."
    planned = f"{each.planned_by} planned it {when(each.planned_at, now)}: {plural(each.total, 'dead letter')}"
    yield f"{planned}, {each.ready:,} of them ready to go."
    if each.started_at is None:
        yield "It was not started." if each.state == "planned" else f"It was {each.state} before it was started."
        return
    approved = f", approved by {each.approved_by}" if each.approved_by else ""
    ran = (each.ended_at or now) - each.started_at
    yield (
        f"{each.started_by} started it {when(each.started_at, now)}{approved}, because: "
        f"“{one_line(each.reason or '', 500)}”. "
        f"It {'ran for' if each.ended_at else 'has been going for'} {span(ran.total_seconds())}, {_release(each)}."
    )
    yield outcome(each) if each.state not in ("running", "paused") else Moment(each, 0.0).line
    if each.stop_reason:
        yield f"{(each.stopped_by or 'Somebody')} {each.state} it: {one_line(each.stop_reason, 300)}."
    resolved = sum(group is not None and group.state == "resolved" for _, group, _ in told.groups)
    if each.state == "done":
        yield f"{resolved} of {plural(len(told.groups), 'group')} {'is' if resolved == 1 else 'are'} resolved."


def _groups_table(told: Report) -> RenderableType:
    rows = [
        (
            "—" if fingerprint is None else fingerprint.partition(":")[2][:8],
            f"{sum(states.values()):,}",
            *(f"{states.get(state, 0):,}" for state, _ in _OUTCOMES),
            "" if group is None else group.state,
            "" if group is None else one_line(show.said(group.title), 200),
        )
        for fingerprint, group, states in told.groups
    ]
    columns = ("GROUP", "MEMBERS", *(name for _, name in _OUTCOMES), "NOW", "TITLE")
    return show.table(columns, rows, wide="TITLE", spare=("NOT ELIGIBLE", "SKIPPED", "NOW"))


# --- acting ---


@app.command("pause")
def pause(
    ctx: typer.Context,
    redrive_id: RedriveArgument,
    reason: ReasonOption = None,
    by: ByOption = None,
    output: OutputOption = Output.TABLE,
    url: UrlOption = None,
) -> None:
    """Release nothing more until `resume`; what is under way comes to its end."""
    why, who = reason_from(reason, "pause"), actor(by)
    _do(url_from(ctx, url), redrive_id, output, "paused", lambda *of: actions.pause(*of, by=who, reason=why))


@app.command("resume")
def resume(
    ctx: typer.Context,
    redrive_id: RedriveArgument,
    by: ByOption = None,
    output: OutputOption = Output.TABLE,
    url: UrlOption = None,
) -> None:
    """Go on after a pause or a halt; a ramp that halted goes on with its next stage."""
    who = actor(by)

    async def act(app_: Redrive, standing: Redriving) -> Redriving:
        resumed = await actions.resume(app_, standing, by=who)
        if not await views.live_workers(app_):
            say(no_worker())
        return resumed

    _do(url_from(ctx, url), redrive_id, output, "resumed", act)


@app.command("abort")
def abort(
    ctx: typer.Context,
    redrive_id: RedriveArgument,
    reason: ReasonOption = None,
    by: ByOption = None,
    output: OutputOption = Output.TABLE,
    url: UrlOption = None,
) -> None:
    """End a redrive or drop a plan; what was not released stays as it is."""
    why, who = reason_from(reason, "abort"), actor(by)
    _do(url_from(ctx, url), redrive_id, output, "aborted", lambda app_, of: app_.abort(of.id, by=who, reason=why))


@app.command("approve")
def approve(
    ctx: typer.Context,
    redrive_id: RedriveArgument,
    by: ByOption = None,
    output: OutputOption = Output.TABLE,
    url: UrlOption = None,
) -> None:
    """Agree with a plan as a second person."""
    who = actor(by)
    _do(url_from(ctx, url), redrive_id, output, "approved", lambda *of: actions.approve(*of, by=who))


@app.command("approval")
def approval(
    ctx: typer.Context,
    above: Annotated[
        int | None, typer.Option("--above", metavar="N", help="Redrives of more events need a second person.")
    ] = None,
    off: Annotated[bool, typer.Option("--off", help="No redrive needs a second person.")] = False,
    agents: Annotated[
        int | None, typer.Option("--agents", metavar="N", help="Agents start more events only when a person agrees.")
    ] = None,
    reason: ReasonOption = None,
    by: ByOption = None,
    output: OutputOption = Output.TABLE,
    url: UrlOption = None,
) -> None:
    """Show or set above how many events a redrive needs a second person. It holds for everybody on this database."""
    if above is not None and off:
        raise BadInput("--above and --off say different things: give one of them")
    if above is not None and not 1 <= above < 2**63:
        raise BadInput(f"--above is a whole number from 1 (a single replay needs no second person), not {above}")
    if agents is not None and not 0 <= agents < 2**31:
        raise BadInput(f"--agents is a whole number from 0 (then they start nothing alone), not {agents}")
    sets = off or above is not None
    why = reason_from(reason, "set") if sets or agents is not None else ""
    found, alone, now = run(_approval(url_from(ctx, url), above, agents, sets=sets, by=actor(by), reason=why))
    if output is Output.TABLE:
        for line in _approval_said(found, alone, now):
            show.put_line(line)
    else:
        told = {
            "above": None if found is None else found.value,
            "set_by": None if found is None else found.set_by,
            "set_at": None if found is None else iso(found.set_at),
            "agents_above": alone,
        }
        show.plain(told, output)


async def _approval(
    url: str, above: int | None, agents: int | None, *, sets: bool, by: str, reason: str
) -> tuple[Setting | None, int, datetime]:
    async with existing(url) as app_:
        if sets:
            await actions.set_approval(app_, above, by=by, reason=reason)
        if agents is not None:
            await actions.set_agents_limit(app_, agents, by=by, reason=reason)
        return await actions.approval(app_), await actions.agents_limit(app_), app_.clock.now()


def _approval_said(found: Setting | None, alone: int, now: datetime) -> Iterable[str]:
    if found is None or found.value is None:
        yield "No redrive needs a second person, as far as this database says; an app may be stricter."
    else:
        yield f"Redrives of more than {plural(found.value, 'event')} need a second person's approval."
    if found is not None:
        yield f"Set by {found.set_by} {when(found.set_at, now)}."
    yield f"Agents start redrives of more than {plural(alone, 'event')} only when a person has approved them."


Act = Callable[[Redrive, Redriving], Coroutine[Any, Any, Redriving]]


async def _same(_app: Redrive, standing: Redriving) -> Redriving:
    return standing


async def _with(url: str, text: str, act: Act) -> tuple[Redriving, datetime]:
    async with existing(url) as app_:
        return await act(app_, await views.find_redrive(app_, text)), app_.clock.now()


def _do(url: str, redrive_id: str, output: Output, done: str, act: Act) -> None:
    standing, _now = run(_with(url, redrive_id, act))
    if output is not Output.TABLE:
        show.plain(views.redriving_json(standing), output)
        return
    show.put_line(f"✓ {done} {standing.id}: {standing.ended:,} of {plural(standing.ready, 'event')} ended")
