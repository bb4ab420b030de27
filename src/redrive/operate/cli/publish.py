"""`redrive publish`: one event from the command line."""

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from redrive.app import Redrive
from redrive.errors import ConfigurationError, PayloadRefused
from redrive.event import Options, Priority, Published
from redrive.operate.cli import show
from redrive.operate.cli.outcome import BadInput, say
from redrive.operate.cli.shared import (
    Output,
    OutputOption,
    UrlOption,
    app_for,
    load_app,
    run,
    seconds_from,
    sqlite_path,
    url_from,
)
from redrive.payload import parse_strict

_PRIORITIES = {each.name.lower(): each for each in Priority}


def publish(  # noqa: PLR0917 - an option each
    ctx: typer.Context,
    type_: Annotated[str, typer.Argument(metavar="TYPE", help="Like order.paid.")],
    payload: Annotated[
        str, typer.Argument(metavar="JSON", help="The payload; @file reads a file, - reads input.")
    ] = "null",
    app: Annotated[
        str | None, typer.Option("--app", metavar="APP", help="Publish as this app does: its targets, its database.")
    ] = None,
    subject: Annotated[str | None, typer.Option("--subject", help="What it is about: order 7.")] = None,
    retry_key: Annotated[str | None, typer.Option("--retry-key", help="At most one live event has it.")] = None,
    ordering_key: Annotated[
        str | None, typer.Option("--ordering-key", help="Events with it go one at a time, in their order.")
    ] = None,
    idempotency_key: Annotated[str | None, typer.Option("--idempotency-key", help="Its effect happens once.")] = None,
    correlation: Annotated[str | None, typer.Option("--correlation", help="The conversation it belongs to.")] = None,
    header: Annotated[
        list[str] | None, typer.Option("--header", "-H", metavar="NAME=VALUE", help="May be repeated.")
    ] = None,
    queue: Annotated[str, typer.Option("--queue", "-q", help="For workers of this queue.")] = "default",
    priority: Annotated[str, typer.Option("--priority", help="high, normal or low.")] = "normal",
    delay: Annotated[str, typer.Option("--delay", metavar="SPAN", help="Not before: 90s, 2h.")] = "0s",
    output: OutputOption = Output.TABLE,
    url: UrlOption = None,
) -> None:
    """Store one event; it is durable when this returns."""
    if priority not in _PRIORITIES:
        raise BadInput(f"--priority {priority!r} is none of {', '.join(_PRIORITIES)}")
    options: Options = {
        "subject": subject,
        "retry_key": retry_key,
        "ordering_key": ordering_key,
        "idempotency_key": idempotency_key,
        "correlation_id": correlation,
        "headers": dict(_header(each) for each in header or []),
        "queue": queue,
        "priority": _PRIORITIES[priority],
        "delay": seconds_from(delay, "--delay"),
    }
    value = payload_from(payload)
    publisher = app_for(url_from(ctx, url)) if app is None else load_app(app)
    published = run(_publish(publisher, type_, value, options))
    told = {"id": str(published.id), "target": published.target, "created": published.created}
    if output is Output.TABLE:
        show.put_line(str(published.id))
        if not published.created:
            say(f"A live event has the retry key {retry_key!r}; this is its id, and nothing new was stored.")
    else:
        show.plain(told, output)


async def _publish(app: Redrive, type_: str, payload: Any, options: Options) -> Published:
    path = sqlite_path(app)
    is_new = path is not None and not path.exists()
    async with app:
        published = await app.publish(type_, payload, **options)
    if is_new:
        say(f"{path} is new: redrive has created it")
    return published


def payload_from(text: str) -> Any:
    """Read the payload: inline, from ``@file`` or from standard input."""
    place = "the payload"
    if text == "-":
        place, text = "standard input", sys.stdin.read()
    elif text.startswith("@"):
        place = text[1:]
        try:
            text = Path(place).read_text(encoding="utf-8")
        except UnicodeDecodeError:
            raise BadInput(f"{place} is not UTF-8 text") from None
        except (OSError, ValueError) as error:
            raise ConfigurationError(f"{place} cannot be read: {getattr(error, 'strerror', error)}") from None
    try:
        return parse_strict(text)
    except json.JSONDecodeError as error:
        where = f"line {error.lineno}, column {error.colno}"
        raise BadInput(f"{place} is not JSON: {error.msg} ({where}); text needs quotes: '\"like this\"'") from None
    except PayloadRefused as error:
        raise BadInput(f"{place} cannot be stored: {error}") from None


def _header(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise BadInput(f"--header {text[:64]!r} has no name: write NAME=VALUE")
    return name, value
