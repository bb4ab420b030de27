"""`redrive groups`: dead letters by their cause."""

from collections.abc import Iterable, Sequence
from datetime import datetime
from enum import StrEnum
from typing import Annotated, Any, Final

import typer
from rich.console import Group as Drawn
from rich.console import RenderableType
from rich.padding import Padding
from rich.text import Text

from redrive.group import Group
from redrive.operate import actions, explain, views
from redrive.operate.cli import show
from redrive.operate.cli.outcome import BadInput, NothingMatched, say
from redrive.operate.cli.redrives import state_text as redrive_state
from redrive.operate.cli.shared import (
    ByOption,
    Output,
    OutputOption,
    UrlOption,
    actor,
    existing,
    run,
    seconds_from,
    url_from,
)
from redrive.operate.cli.text import clean, clock_time, day, duration, one_line, plural, when
from redrive.operate.views import GroupStory

app = typer.Typer(help="Dead letters by their cause: list, explain, own, resolve.", no_args_is_help=True)

GroupArgument = Annotated[str, typer.Argument(metavar="FP", help="The fingerprint, or a unique beginning of it.")]

_COLOURS: Final = {"new": "bold yellow", "ongoing": "yellow", "resolved": "green", "regressed": "bold red"}
_NOTE_LIMIT: Final = 2_000
_OWNER_LIMIT: Final = 255


class State(StrEnum):
    """Where a group stands in its life."""

    NEW = "new"
    ONGOING = "ongoing"
    RESOLVED = "resolved"
    REGRESSED = "regressed"


@app.command("ls")
def ls(
    ctx: typer.Context,
    all_: Annotated[bool, typer.Option("--all", "-a", help="Also those without dead letters.")] = False,
    state: Annotated[State | None, typer.Option("--state", "-s", help="In this state.")] = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, max=10_000, help="At most so many.")] = 100,
    output: OutputOption = Output.TABLE,
    url: UrlOption = None,
) -> None:
    """List groups, the latest failure first."""
    # A resolved group has no dead letters left: whoever asks for those means all.
    run(_list(url_from(ctx, url), state, limit, output, everything=all_ or state is State.RESOLVED))


async def _list(url: str, state: State | None, limit: int, output: Output, *, everything: bool) -> None:
    async with existing(url) as app_:
        found = await app_.groups(everything=everything, state=state and state.value, limit=limit)
        now = app_.clock.now()
    if found or output is not Output.TABLE:
        show.listing(found, output, views.group_json, lambda shown: _table(shown, now))
    if not found and state is not None:
        raise NothingMatched(f"no group is {state}")
    if not found and output is Output.TABLE:
        show.put_line("No groups." if everything else "No dead letters, hence no groups; --all shows earlier ones.")
    if output is Output.TABLE and len(found) == limit:
        show.hint(f"The latest {limit:,} are shown; --limit shows more.")


def _table(found: Sequence[Group], now: datetime) -> RenderableType:
    rows = [
        (
            each.short,
            _state(each, now),
            f"{each.dead_count:,}",
            f"{each.total_count:,}",
            when(each.last_seen_at, now),
            one_line(each.target, 60),
            each.error_class.replace("dependency_", ""),
            one_line(show.said(each.title), 200),
        )
        for each in found
    ]
    columns = ("GROUP", "STATE", "DEAD", "EVER", "LAST SEEN", "TARGET", "CLASS", "TITLE")
    return show.table(
        columns, rows, wide="TITLE", caps={"TARGET": 22}, right="DEAD", spare=("EVER", "CLASS", "LAST SEEN")
    )


def _state(each: Group, now: datetime) -> Text:
    drawn = Text(each.state, style=_COLOURS.get(each.state, ""))
    if each.is_muted(now):
        drawn.append(", muted", style="dim")
    return drawn


# --- one group ---


@app.command("show")
def show_one(
    ctx: typer.Context, fingerprint: GroupArgument, output: OutputOption = Output.TABLE, url: UrlOption = None
) -> None:
    """Show one group: why these belong together, a traceback, counts, what sets them apart, past redrives."""
    story, now = run(_story(url_from(ctx, url), fingerprint))
    show.single(story, output, _story_json, lambda each: _sheet(each, now))


async def _story(url: str, text: str) -> tuple[GroupStory, datetime]:
    async with existing(url) as app_:
        return await views.group_story(app_, await views.find_group(app_, text)), app_.clock.now()


def _story_json(story: GroupStory) -> dict[str, Any]:
    return {
        **views.group_json(story.group),
        "sample": None if story.sample is None else story.sample.to_json(),
        "compared": {"dead": story.dead, "delivered": story.delivered},
        "skew": [views.skew_json(each) for each in story.skews],
        "redrives": [
            {"id": str(each.id), "state": each.state, "members": members, "reason": each.reason}
            for each, members in story.redrives
        ],
    }


def _sheet(story: GroupStory, now: datetime) -> RenderableType:
    parts: list[RenderableType] = [show.facts_sheet(_facts(story.group, now))]
    if story.sample is not None and story.sample.last_error:
        error = Text(clean(story.sample.last_error.rstrip()), style="red")
        parts += [Text(f"\none of them: {story.sample.id}", style="dim"), Padding(error, (0, 0, 0, 2))]
    parts.append(Text("\nwhat sets them apart", style="dim"))
    if story.skews:
        rows = [
            (clean(each.field), clean(each.value), f"{each.among_dead:.0%}", f"{each.among_delivered:.0%}")
            for each in story.skews
        ]
        drawn = show.table(("FIELD", "VALUE", "DEAD", "DELIVERED"), rows, wide="VALUE", caps={"FIELD": 40})
        parts.append(Padding(drawn, (0, 0, 0, 2)))
    parts.append(Padding(Text(explain.compared(story), style="dim"), (0, 0, 0, 2)))
    if story.redrives:
        redrives = [
            (str(each.id)[:13], redrive_state(each.state), f"{members:,}", f"{each.delivered:,}", f"{each.failed:,}",
             one_line(each.reason or "", 200))
            for each, members in story.redrives
        ]  # fmt: skip
        columns = ("ID", "STATE", "OF THIS", "DELIVERED", "FAILED", "REASON")
        parts += [
            Text("\npast redrives", style="dim"),
            Padding(show.table(columns, redrives, wide="REASON"), (0, 0, 0, 2)),
        ]
    if story.group.dead_count:
        parts.append(Text(f"\nNext: redrive plan 'group:{story.group.short}'", style="dim"))
    return Drawn(*parts)


def _facts(each: Group, now: datetime) -> Iterable[tuple[str, str | Text | None]]:
    yield "group", each.fingerprint
    yield "title", one_line(each.title, 300)
    yield "state", _state(each, now)
    yield "why grouped", each.why
    yield "dead letters", f"{each.dead_count:,} now, {each.total_count:,} ever"
    yield "first seen", f"{_instant(each.first_seen_at, now)}, in generation {each.first_generation}"
    yield "last seen", f"{_instant(each.last_seen_at, now)}, in generation {each.last_generation}"
    yield "owner", each.owner
    yield "note", each.note
    yield "muted until", _instant(each.muted_until, now) if each.muted_until and each.is_muted(now) else None
    if each.resolved_at is not None:
        yield "resolved", f"{_instant(each.resolved_at, now)} by {each.resolved_by}"


def _instant(at: datetime, now: datetime) -> str:
    return f"{day(at)} {clock_time(at)[:8]} UTC ({when(at, now)})"


@app.command("explain")
def explain_one(
    ctx: typer.Context, fingerprint: GroupArgument, output: OutputOption = Output.TABLE, url: UrlOption = None
) -> None:
    """Say in sentences why these belong together and what sets them apart from what was delivered."""
    story, now = run(_story(url_from(ctx, url), fingerprint))
    sentences = list(explain.sentences(story, now))
    if output is Output.TABLE:
        for sentence in sentences:
            show.put(Text(clean(sentence)))
        return
    told = {"fingerprint": story.group.fingerprint, "sentences": sentences,
            "skew": [views.skew_json(each) for each in story.skews]}  # fmt: skip
    show.plain(told, output)


# --- saying something about a group ---


@app.command("resolve")
def resolve(
    ctx: typer.Context,
    fingerprint: GroupArgument,
    note: Annotated[str | None, typer.Option("--note", metavar="TEXT", help="What was done.")] = None,
    by: ByOption = None,
    output: OutputOption = Output.TABLE,
    url: UrlOption = None,
) -> None:
    """Say that the cause is mended; should it come back, the group is regressed. Dead letters stay where they are."""
    said = None if note is None else _text(note, "--note", _NOTE_LIMIT)
    group = run(_describe(url_from(ctx, url), fingerprint, actor(by), state="resolved", note=said))
    _tell(group, output, "is resolved")
    if group.dead_count and output is Output.TABLE:
        say(f"Its {plural(group.dead_count, 'dead letter')} stay: redrive plan 'group:{group.short}'")


@app.command("mute")
def mute(
    ctx: typer.Context,
    fingerprint: GroupArgument,
    span: Annotated[str, typer.Argument(metavar="SPAN", help="For how long: 2h, 3d; 0 ends it.")],
    by: ByOption = None,
    output: OutputOption = Output.TABLE,
    url: UrlOption = None,
) -> None:
    """Let a group be quiet for a while; it is counted all the same."""
    seconds = seconds_from(span, "SPAN")
    group = run(_describe(url_from(ctx, url), fingerprint, actor(by), muted_for=seconds))
    _tell(group, output, f"is muted for {duration(seconds)}" if seconds else "is not muted any more")


@app.command("note")
def note(
    ctx: typer.Context,
    fingerprint: GroupArgument,
    text: Annotated[str, typer.Argument(metavar="TEXT", help="What is known of it.")],
    by: ByOption = None,
    output: OutputOption = Output.TABLE,
    url: UrlOption = None,
) -> None:
    """Write down what is known of a group."""
    said = _text(text, "TEXT", _NOTE_LIMIT)
    _tell(run(_describe(url_from(ctx, url), fingerprint, actor(by), note=said)), output, "has a note")


@app.command("own")
def own(
    ctx: typer.Context,
    fingerprint: GroupArgument,
    owner: Annotated[str, typer.Argument(metavar="OWNER", help="Who looks after it.")],
    by: ByOption = None,
    output: OutputOption = Output.TABLE,
    url: UrlOption = None,
) -> None:
    """Say who looks after a group."""
    who = _text(owner, "OWNER", _OWNER_LIMIT)
    _tell(run(_describe(url_from(ctx, url), fingerprint, actor(by), owner=who)), output, f"is looked after by {who}")


async def _describe(url: str, text: str, by: str, **what: Any) -> Group:
    async with existing(url) as app_:
        return await actions.describe(app_, await views.find_group(app_, text), by=by, **what)


def _text(text: str, name: str, limit: int) -> str:
    if not text.strip():
        raise BadInput(f"{name} is empty: say something")
    if len(text) > limit:
        raise BadInput(f"{name} is longer than {limit:,} characters: say less")
    if "\x00" in text or any("\ud800" <= each <= "\udfff" for each in text):
        raise BadInput(f"{name} has a character that cannot be stored: leave it out")
    return text.strip()


def _tell(group: Group, output: Output, what: str) -> None:
    show.single(group, output, views.group_json, lambda each: Text(clean(f"✓ {each.short} {what}")))


@app.command("rebuild")
def rebuild(
    ctx: typer.Context,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say which counts are wrong.")] = False,
    output: OutputOption = Output.TABLE,
    url: UrlOption = None,
) -> None:
    """Count the dead letters of every group anew; says which counts were wrong. A group that is missing comes back."""
    corrected = run(_rebuild(url_from(ctx, url), dry_run=dry_run))
    if output is not Output.TABLE:
        told = [{"fingerprint": fingerprint, "dead_count": count} for fingerprint, count in corrected.items()]
        show.listing(told, output, lambda each: each, lambda _: "")
        return
    for fingerprint, count in corrected.items():
        show.put_line(f"{fingerprint} has {plural(count, 'dead letter')}")
    done = "to be corrected" if dry_run else "corrected"
    show.put_line(f"✓ {plural(len(corrected), 'count')} {done}" if corrected else "✓ every count was right")


async def _rebuild(url: str, *, dry_run: bool) -> dict[str, int]:
    async with existing(url) as app_:
        return await actions.rebuild_groups(app_, dry_run=dry_run)
