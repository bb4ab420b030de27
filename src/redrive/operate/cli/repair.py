"""`redrive replay` and `redrive shadow`: send dead letters round again, mended if need be, or only try."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import typer

from redrive.app import Redrive
from redrive.errors import Refused
from redrive.event import Event
from redrive.operate import actions, views
from redrive.operate.actions import Done, Shadowed
from redrive.operate.cli import show
from redrive.operate.cli.outcome import BadInput, Code, say
from redrive.operate.cli.publish import payload_from
from redrive.operate.cli.shared import (
    ByOption,
    DryRunOption,
    IdsArgument,
    Output,
    OutputOption,
    ReasonOption,
    UrlOption,
    actor,
    existing,
    found,
    ids_from,
    place_from,
    reason_from,
    run,
)
from redrive.operate.cli.text import clean, one_line, plural
from redrive.operate.edit import BadEdit, Change, Difference, assignment, differences, edited, removal

_SHOWN: int = 200


# --- replay ---


@dataclass(frozen=True, slots=True)
class _Edit:
    """What is to become of a payload: another one, some fields changed, or nothing."""

    whole: str | None
    changes: Sequence[Change]

    def __bool__(self) -> bool:
        return self.whole is not None or bool(self.changes)


def replay(  # noqa: PLR0917 - typer calls it by name
    ctx: typer.Context,
    ids: IdsArgument,
    reason: ReasonOption = None,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="payload.FIELD=VALUE", help="Edit a field first: JSON, or text. Repeatable."),
    ] = None,
    unset: Annotated[
        list[str] | None, typer.Option("--unset", metavar="payload.FIELD", help="Take a field out first. Repeatable.")
    ] = None,
    payload: Annotated[
        str | None, typer.Option("--payload", metavar="JSON", help="Another payload; @file or - to read it.")
    ] = None,
    app: Annotated[
        str | None, typer.Option("--app", metavar="APP", help="Check an edited payload with the handlers of this app.")
    ] = None,
    generation: Annotated[
        int | None,
        typer.Option(
            "--generation", "-g", help="Hand it to handlers of this generation (default: one that a worker serves)."
        ),
    ] = None,
    from_start: Annotated[
        bool, typer.Option("--from-start", help="Forget the finished steps; go on after them otherwise.")
    ] = False,
    repeat_steps: Annotated[
        bool, typer.Option("--repeat-steps", help="With --from-start: run finished steps again that were not undone.")
    ] = False,
    dry_run: DryRunOption = False,
    by: ByOption = None,
    output: OutputOption = Output.TABLE,
    url: UrlOption = None,
) -> None:
    """Send dead letters round again, in place: their identity and the history of failures stay.

    With --set, --unset or --payload they go with an edited payload; what changes is shown, and the original is kept.
    """
    why = "" if dry_run else reason_from(reason, "replay")
    edit = _Edit(payload, _changes(set_ or [], unset or []))
    if payload == "-" and "-" in ids:
        raise BadInput("standard input can be read once: give the ids, or the payload, in another way")
    if generation is not None and not 0 <= generation < 2**63:
        raise BadInput(f"--generation is a whole number from 0, not {generation}")
    place, who, named = place_from(ctx, url, app), actor(by), ids_from(ids)
    options = {"by": who, "reason": why, "generation": generation, "from_start": from_start,
               "repeat_steps": repeat_steps}  # fmt: skip
    outcomes = run(_replay(place, named, edit, output, dry_run=dry_run, **options))
    show.told(outcomes, output)
    if any(done.refused for done in outcomes):
        raise typer.Exit(Code.REFUSED)


def _changes(set_: Sequence[str], unset: Sequence[str]) -> list[Change]:
    return [*map(assignment, set_), *map(removal, unset)]


async def _replay(
    place: str | Redrive, ids: list[str], edit: _Edit, output: Output, *, dry_run: bool, **options: Any
) -> list[Done]:
    async with existing(place) as app:
        events = await found(app, ids)
        payloads = _edited(app, events, edit) if edit else None
        changes = [
            (event, differences(event.payload, (payloads or {}).get(event.id, event.payload))) for event in events
        ]
        if output is Output.TABLE:
            _tell_changes(changes, edit)
        elif dry_run:
            show.listing(changes, output, _changes_json, lambda _: "")
        if dry_run:
            say(f"Nothing was done: {plural(len(events), 'event')} would be replayed.")
            raise typer.Exit
        outcomes = await actions.replay(app, events, payloads=payloads, **options)
        for event in await views.not_served(app, [each.event.id for each in outcomes if not each.refused]):
            say(
                f"No running worker serves {clean(event.target)} in generation {event.generation}: "
                f"event {event.id} waits for one (`redrive worker APP --generation {event.generation}`)."
            )
        return outcomes


def _edited(app: Redrive, events: Sequence[Event], edit: _Edit) -> dict[Any, Any]:
    """Make every new payload before anything is done to any event."""
    if edit.whole is not None and len(events) > 1:
        raise BadInput(f"--payload is for one event, not for {len(events)}: --set changes a field of each")
    whole = None if edit.whole is None else payload_from(edit.whole)
    payloads = {}
    for event in events:
        if app.handlers and event.target not in app.handlers:
            raise Refused(f"nobody in this app handles {event.target!r}: name the app that does")
        try:
            payloads[event.id] = edited(event.payload if edit.whole is None else whole, edit.changes)
        except BadEdit as error:
            raise BadEdit(f"{event.id}: {error}; nothing was done") from None
    return payloads


def _changes_json(change: tuple[Event, Sequence[Difference]]) -> dict[str, Any]:
    event, changed = change
    return {"id": str(event.id), "changes": [each.to_json() for each in changed], "done": False}


def _tell_changes(changes: Sequence[tuple[Event, Sequence[Difference]]], edit: _Edit) -> None:
    """Show what an edit changes before it goes."""
    for event, changed in changes if edit else ():
        show.put_line(f"{event.id}  {show.name_of(event)}" + ("" if changed else ": the payload stays as it is"))
        for line in (line for each in changed for line in _lines(each)):
            show.put_line(f"  {line}")


def _lines(each: Difference) -> list[str]:
    before = [f"- {each.place}: {_short(each.before)}"] if each.has_before else []
    after = [f"+ {each.place}: {_short(each.after)}"] if each.has_after else []
    return before + after


def _short(value: Any) -> str:
    return one_line(json.dumps(value, ensure_ascii=False), _SHOWN)


# --- shadow ---


def shadow(
    ctx: typer.Context,
    ids: IdsArgument,
    app: Annotated[str, typer.Option("--app", metavar="APP", help="Whose handlers: module:attribute, like app:app.")],
    force: Annotated[
        bool, typer.Option("--force", help="Also handlers that do not say whether they reach outside.")
    ] = False,
    output: OutputOption = Output.TABLE,
    url: UrlOption = None,
) -> None:
    """Run handlers on dead letters in a transaction that is rolled back, and say how each would end.

    Ends with 0 when all would go through, 1 when one would fail, 4 when one may not be tried.
    """
    place, named = place_from(ctx, url, app), ids_from(ids)
    shadows = run(_shadow(place, named, force=force))
    if output is Output.TABLE:
        for each in shadows:
            _tell_shadow(each)
    else:
        show.listing(shadows, output, lambda each: each.to_json(), lambda _: "")
    if any(each.refused for each in shadows):
        raise typer.Exit(Code.REFUSED)
    if any(each.shadow is not None and each.shadow.would == "fail" for each in shadows):
        raise typer.Exit(Code.ERROR)


async def _shadow(place: str | Redrive, ids: list[str], *, force: bool) -> list[Shadowed]:
    async with existing(place) as app:
        events = await found(app, ids)
        with show.progress("trying") as advance:
            shadows: list[Shadowed] = []
            for event in events:
                shadows += await actions.shadow(app, [event], force=force)
                advance(len(shadows))
            return shadows


def _tell_shadow(each: Shadowed) -> None:
    name = f"{each.event.id}  {show.name_of(each.event)}"
    if each.shadow is None:
        say(f"✗ {name}: not tried, {each.refused}")
        return
    said = {
        "succeed": "✓ {name}: would succeed",
        "do nothing": "✓ {name}: would do nothing, its effect is there already",
        "fail": "✗ {name}: fails with {error} ({error_class})",
    }[each.shadow.would]
    error = one_line(show.said(each.shadow.error or ""), _SHOWN)
    show.put_line(said.format(name=name, error=error, error_class=each.shadow.error_class))
    for type_, payload in each.shadow.published:
        show.put_line(f"    would publish {clean(type_)} {_short(payload)}")
