"""`redrive audit`: the trail. Everything that was done, by whom, and proof that it was not changed."""

import json
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import RenderableType

from redrive.event import TrailEntry
from redrive.operate import views
from redrive.operate.cli import show
from redrive.operate.cli.outcome import BadInput, Code, say
from redrive.operate.cli.shared import Output, OutputOption, UrlOption, existing, run, url_from
from redrive.operate.cli.text import clean, one_line, plural, when
from redrive.trail import Verdict, verify

app = typer.Typer(help="The trail: read it, check that nobody changed it, note its heads.", no_args_is_help=True)

Heads = dict[str, tuple[int, str]]


@app.command("ls")
def ls(
    ctx: typer.Context,
    event: Annotated[str | None, typer.Option("--event", metavar="ID", help="Of this event only.")] = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, max=100_000, help="At most so many.")] = 50,
    output: OutputOption = Output.TABLE,
    url: UrlOption = None,
) -> None:
    """List what was recorded, newest first."""
    run(_list(url_from(ctx, url), event, limit, output))


async def _list(url: str, event: str | None, limit: int, output: Output) -> None:
    async with existing(url) as app_:
        if event is None:
            entries = await views.recent_trail(app_, limit)
        else:
            entries = list(reversed(await app_.trail((await views.find(app_, event)).id)))[:limit]
        now = app_.clock.now()

    def draw(shown: Any) -> RenderableType:
        rows = [
            (
                when(entry.at, now),
                entry.kind,
                "" if entry.event_id is None else str(entry.event_id)[:13],
                clean(entry.actor),
                _detail(entry),
            )
            for entry in shown
        ]
        return show.table(("WHEN", "WHAT", "EVENT", "BY", "DETAIL"), rows, wide="DETAIL", caps={"BY": 18})

    if output is Output.TABLE and not entries:
        show.put_line("The trail is empty.")
        return
    show.listing(entries, output, views.entry_json, draw)


def _detail(entry: TrailEntry) -> str:
    facts = entry.facts
    what = _redrive(facts) if entry.kind.startswith("redrive-") else _setting(facts) if "setting" in facts else ""
    if what or "reason" in facts:
        return one_line(": ".join(filter(None, (what, str(facts.get("reason") or "")))), 200)
    kind = str(facts.get("error_type") or "").rpartition(".")[2]
    said = [f"attempt {facts['attempt']}" if "attempt" in facts else "", kind, str(facts.get("error_class") or "")]
    return one_line(" · ".join(filter(None, said)), 200)


def _redrive(facts: Mapping[str, Any]) -> str:
    """Say which redrive an entry is about, and how much of it."""
    events = facts.get("events", facts.get("released"))
    size = "" if events is None else f", {plural(int(events), 'event')}{' released' if 'released' in facts else ''}"
    about = facts.get("what") or facts.get("selection")
    return f"{str(facts.get('redrive'))[:13]}{size}" + (f", {about}" if about else "")


def _setting(facts: Mapping[str, Any]) -> str:
    return f"{facts['setting']} {_said(facts.get('was'))} → {_said(facts.get('is'))}"


def _said(value: Any) -> str:
    return "off" if value is None else str(value)


@app.command("verify")
def verify_trail(
    ctx: typer.Context,
    against: Annotated[
        Path | None, typer.Option("--against", metavar="FILE", help="Heads that `audit heads` wrote earlier.")
    ] = None,
    output: OutputOption = Output.TABLE,
    url: UrlOption = None,
) -> None:
    """Check every chain of the trail; with --against also that none was cut off at its end."""
    noted = {} if against is None else read_heads(against)
    verdict = run(_verify(url_from(ctx, url), noted))
    told = {
        "sound": verdict.sound,
        "entries": verdict.entries,
        "chains": len(verdict.heads),
        "compared": len(noted),
        "problems": verdict.problems,
    }
    if output is not Output.TABLE:
        show.plain(told, output)
    else:
        _tell_verdict(verdict, against)
    if not verdict.sound:
        raise typer.Exit(Code.ERROR)


def _tell_verdict(verdict: Verdict, against: Path | None) -> None:
    for problem in verdict.problems:
        show.put_line(f"✗ {problem}")
    size = (
        f"{verdict.entries:,} {'entry' if verdict.entries == 1 else 'entries'} in {plural(len(verdict.heads), 'chain')}"
    )
    if not verdict.sound:
        show.put_line(f"The trail is not what was written: {plural(len(verdict.problems), 'problem')} in {size}.")
    elif against is None:
        show.put_line(f"✓ {size}: nothing was changed or taken out.")
        show.hint(
            "A chain cut off at its end is found only by heads kept elsewhere: `redrive audit heads > heads.jsonl`."
        )
    else:
        show.put_line(f"✓ {size}: nothing was changed or taken out, and every head of {against} is there.")


async def _verify(url: str, noted: Heads) -> Verdict:
    async with existing(url) as app_:
        with show.progress("checking the trail") as advance:
            return await verify(_counted(app_.store.trail(), advance), noted)


async def _counted(entries: AsyncIterator[TrailEntry], advance: Callable[[int], None]) -> AsyncIterator[TrailEntry]:
    seen = 0
    async for entry in entries:
        seen += 1
        if seen % 1_000 == 0:
            advance(seen)
        yield entry


@app.command("heads")
def heads(ctx: typer.Context, output: OutputOption = Output.JSONL, url: UrlOption = None) -> None:
    """Write the last entry of every chain, to be kept outside the database; `audit verify --against` compares."""
    verdict = run(_verify(url_from(ctx, url), {}))
    items = [{"chain": chain, "seq": seq, "hash": digest} for chain, (seq, digest) in sorted(verdict.heads.items())]

    def draw(shown: Any) -> RenderableType:
        rows = [(clean(each["chain"]), f"{each['seq']:,}", each["hash"]) for each in shown]
        return show.table(("CHAIN", "ENTRIES", "HASH"), rows, wide="HASH", right="ENTRIES")

    show.listing(items, output, lambda each: each, draw)
    if not verdict.sound:
        say("The trail is not sound: `redrive audit verify` says where.")
        raise typer.Exit(Code.ERROR)


def read_heads(file: Path) -> Heads:
    """Read what `audit heads` wrote, as JSON or JSON lines."""
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise BadInput(f"{file} cannot be read: {getattr(error, 'strerror', None) or error}") from None
    try:
        items = (
            json.loads(text)
            if text.lstrip().startswith("[")
            else [json.loads(line) for line in text.splitlines() if line.strip()]
        )
        return {str(each["chain"]): (int(each["seq"]), str(each["hash"])) for each in items}
    except (ValueError, KeyError, TypeError):
        raise BadInput(f"{file} was not written by `redrive audit heads`") from None
