"""`redrive token`: who may come in over HTTP."""

from collections.abc import Sequence
from datetime import datetime
from typing import Annotated, Final

import typer
from rich.console import RenderableType
from rich.text import Text

from redrive.operate.auth import DEFAULT_EXPIRY, Role, Token, Tokens
from redrive.operate.cli import show
from redrive.operate.cli.outcome import say
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
from redrive.operate.cli.text import clean, when

app = typer.Typer(help="Tokens for the HTTP side: create, list, revoke.", no_args_is_help=True)

_SHOWN: Final = 18  # of an id: the time and the first of what is random
_COLOURS: Final = {"live": "green", "expired": "yellow", "revoked": "dim"}


@app.command("create")
def create(
    ctx: typer.Context,
    name: Annotated[str, typer.Argument(metavar="NAME", help="Whose it is; the name on the trail, like ada.")],
    role: Annotated[Role, typer.Option("--role", help="What they are here for.")] = Role.VIEWER,
    expires: Annotated[
        str, typer.Option("--expires", metavar="SPAN", help="How long it is good for.")
    ] = DEFAULT_EXPIRY,
    by: ByOption = None,
    output: OutputOption = Output.TABLE,
    url: UrlOption = None,
) -> None:
    """Make a token. It is printed once; the database keeps a hash of it."""
    seconds = seconds_from(expires, "--expires")
    token, secret = run(_create(url_from(ctx, url), name, role, seconds, actor(by)))
    if output is Output.TABLE:
        show.put_line(secret)
        say(f"This is the token of {token.name} ({token.role}); it is shown this once. It expires on {_day(token)}.")
    else:
        show.plain({**token.to_json(), "token": secret}, output)


async def _create(url: str, name: str, role: Role, seconds: float, by: str) -> tuple[Token, str]:
    async with existing(url) as app_:
        return await Tokens(app_).create(name, role, by=by, expires=seconds)


def _day(token: Token) -> str:
    return f"{token.expires_at:%Y-%m-%d}"


@app.command("ls")
def ls(ctx: typer.Context, output: OutputOption = Output.TABLE, url: UrlOption = None) -> None:
    """List tokens: whose they are, what they allow, when they were last used."""
    found, now = run(_all(url_from(ctx, url)))
    if found or output is not Output.TABLE:
        show.listing(found, output, Token.to_json, lambda shown: _table(shown, now))
    else:
        show.put_line("There are none: `redrive token create NAME --role operator` makes one.")


async def _all(url: str) -> tuple[list[Token], datetime]:
    async with existing(url) as app_:
        return await Tokens(app_).all(), app_.clock.now()


def _table(found: Sequence[Token], now: datetime) -> RenderableType:
    rows = [
        (
            str(each.id)[:_SHOWN],
            clean(each.name),
            str(each.role),
            Text(each.state, style=_COLOURS[each.state]),
            when(each.expires_at, now),
            "never" if each.last_used_at is None else when(each.last_used_at, now),
            clean(each.created_by),
        )
        for each in found
    ]
    columns = ("ID", "NAME", "ROLE", "STATE", "EXPIRES", "LAST USED", "BY")
    return show.table(columns, rows, wide="BY", caps={"NAME": 30})


@app.command("revoke")
def revoke(
    ctx: typer.Context,
    token: Annotated[str, typer.Argument(metavar="NAME|ID", help="As `redrive token ls` shows it.")],
    by: ByOption = None,
    output: OutputOption = Output.TABLE,
    url: UrlOption = None,
) -> None:
    """Have a token open nothing any more; servers take notice within seconds."""
    gone = run(_revoke(url_from(ctx, url), token, actor(by)))
    show.single(gone, output, Token.to_json, lambda each: Text(f"✓ the token of {each.name} is revoked"))


async def _revoke(url: str, text: str, by: str) -> Token:
    async with existing(url) as app_:
        tokens = Tokens(app_)
        return await tokens.revoke(await tokens.find(text), by=by)
