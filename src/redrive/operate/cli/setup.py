"""`redrive init`, `redrive migrate`, `redrive doctor`: from an empty folder to a database in order."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from redrive.errors import ConfigurationError, Refused
from redrive.operate import doctor as checks
from redrive.operate.cli import show
from redrive.operate.cli.outcome import BadInput, Code, say
from redrive.operate.cli.shared import (
    Output,
    OutputOption,
    UrlOption,
    app_for,
    load_app,
    run,
    shown,
    sqlite_path,
    url_from,
)
from redrive.operate.cli.text import clean
from redrive.operate.doctor import Check, Health
from redrive.store.sql import FIRST_ROLLING, SCHEMA, in_schema, migrations, needs

STARTER: Final = '''"""A first app: what happens when an order is paid."""

import os

from redrive import Context, Redrive, RetryPolicy

app = Redrive(os.environ.get("REDRIVE_URL", "sqlite:///redrive.db"), source="shop")


@app.handler("order.paid", retry=RetryPolicy(max_attempts=5, base_delay="1s"))
async def ship(order: dict, ctx: Context) -> None:
    """Ship an order. What is raised here is retried, then kept as a dead letter that can be replayed."""
    if order.get("carrier") == "down":
        raise ConnectionError("the carrier does not answer")
    # Your work, the record that it was done and "delivered" are one commit: it cannot happen twice.
    async with ctx.transaction() as tx:
        await tx.publish("order.shipped", {"order": order["id"]})
    print(f"order {order['id']} shipped at attempt {ctx.attempt}")


@app.handler("order.shipped")
async def notify(event: dict) -> None:
    """Tell the customer."""
    print(f"order {event['order']}: the customer knows")
'''


def init(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The file to write.")] = Path("app.py"),
) -> None:
    """Write a small first app to this folder."""
    if file.suffix != ".py":
        raise Refused(f"{file} is no Python file: name one that ends in .py")
    try:
        with file.open("x", encoding="utf-8") as new:
            new.write(STARTER)
    except FileExistsError:
        raise Refused(f"{file} exists and stays as it is: name another file, `redrive init shop.py`") from None
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"{file} cannot be written: {getattr(error, 'strerror', None) or error}") from None
    module = file.stem
    show.put_line(f"✓ {file} is there. Next, in this folder:")
    for command, why in (
        (f"redrive up {module}:app", "run it; leave it running"),
        ("redrive publish order.paid '{\"id\": 7}'", "an order arrives, in another terminal"),
        ('redrive publish order.paid \'{"id": 8, "carrier": "down"}\'', "one that fails and is retried"),
        ("redrive events ls", "see what became of them"),
    ):
        show.put_line(f"  {command:<62}  # {why}" if len(command) < 60 else f"  {command}\n      # {why}")  # noqa: PLR2004


def migrate(
    ctx: typer.Context,
    sql: Annotated[bool, typer.Option("--sql", help="Print the SQL instead; no database is touched.")] = False,
    since: Annotated[int, typer.Option("--since", min=0, help="With --sql: only what comes after this version.")] = 0,
    output: OutputOption = Output.TABLE,
    url: UrlOption = None,
) -> None:
    """Create redrive's tables, or bring them up to date. Safe to run again."""
    if sql and output is not Output.TABLE:
        raise BadInput("--sql prints SQL: leave --output out")
    place = url_from(ctx, url)
    app = app_for(place, migrate=False)
    if sql:
        print(script(app.store.name, since, app.store.schema))
        return
    path = sqlite_path(app)
    if path is None and app.store.name == "sqlite":
        raise Refused("sqlite:///:memory: ends with this command: name a file")
    done = run(_migrate(app))
    if output is not Output.TABLE:
        show.plain({"applied": done}, output)
    elif done:
        show.put_line(f"✓ {shown(place)}: {', '.join(done)} applied")
    else:
        show.put_line(f"✓ {shown(place)} is up to date")


async def _migrate(app: Any) -> list[str]:
    await app.store.open()
    try:
        if await app.store.schema_version() > migrations(app.store.name)[-1][0]:
            await app.store.check_schema()  # says what to do, if this code may not work on it
        return list(await app.store.migrate())
    finally:
        await app.store.close()


def script(store: str, since: int, schema: str = SCHEMA) -> str:
    """Write the migrations as one script that leaves the schema as `redrive migrate` does."""
    noted = {
        "sqlite": "insert into redrive_schema_version (version, name, applied_at{0}) "
        "values ({1}, '{2}', strftime('%s', 'now') * 1000000{3});",
        "postgres": "insert into redrive.schema_version (version, name{0}) values ({1}, '{2}'{3});",
    }[store]
    parts = []
    for version, name, text in migrations(store, schema):
        if version > since:
            rolling = (", needs", f", {needs(store, version)}") if version >= FIRST_ROLLING else ("", "")
            note = in_schema(store, noted.format(rolling[0], version, name, rolling[1]), schema)
            parts.append(f"-- {version:04d}_{name}\nbegin;\n\n{text.strip()}\n\n{note}\ncommit;\n")
    return "\n".join(parts) or f"-- nothing comes after version {since}"


# --- doctor ---

_MARKS: Final = {Health.OK: ("✓", "green"), Health.WARNING: ("!", "yellow"), Health.PROBLEM: ("✗", "bold red")}


def doctor(
    ctx: typer.Context,
    app: Annotated[
        str | None, typer.Option("--app", metavar="APP", help="Examine this app: its database, its retention.")
    ] = None,
    output: OutputOption = Output.TABLE,
    url: UrlOption = None,
) -> None:
    """Look for what will hurt later. Ends with 1 when there is a problem."""
    place = url_from(ctx, url)
    examined = app_for(place, migrate=False) if app is None else load_app(app)
    path = sqlite_path(examined)
    if path is not None and path.parent.is_dir() and not path.exists():
        found = [Check("database", Health.PROBLEM, f"there is no file {path}", "create it: `redrive migrate`")]
    else:
        found = run(_examine(examined))
    show.listing(found, output, lambda check: check.to_json(), _draw_checks)
    problems = sum(check.health is Health.PROBLEM for check in found)
    warnings = sum(check.health is Health.WARNING for check in found)
    if output is Output.TABLE:
        verdict = f"{problems} to mend, {warnings} to know" if problems or warnings else "all is well"
        show.put_line(f"\n{shown(examined.url)}: {verdict}")
    elif problems:
        say(f"{problems} to mend")
    if problems:
        raise typer.Exit(Code.ERROR)


async def _examine(app: Any) -> list[Check]:
    return [check async for check in checks.examine(app)]


def _draw_checks(found: Sequence[Check]) -> RenderableType:
    drawn = Table.grid(padding=(0, 1, 0, 0))
    drawn.add_column(no_wrap=True)
    drawn.add_column(no_wrap=True, style="bold")
    drawn.add_column(overflow="fold")
    for check in found:
        mark, style = _MARKS[check.health]
        drawn.add_row(Text(mark, style=style), check.name, Text(clean(check.what)))
        if check.what_to_do:
            drawn.add_row(
                "", "", Text(f"→ {clean(check.what_to_do)}", style="dim" if check.health is Health.OK else style)
            )
    return drawn
