"""The root: every command, in the order in which one needs them; each is imported when it is asked for."""

from collections import UserDict
from functools import cache
from importlib import import_module
from typing import Annotated, Any, Final

import typer

from redrive import __version__
from redrive.operate.cli.outcome import Commands
from redrive.operate.cli.shared import Settings, log_to_stderr

_EPILOG = (
    "Exit codes: 0 done, 1 error, 2 usage, 3 nothing matched, 4 refused, 5 halted or a person is needed. "
    "Ids can be cut to a unique beginning."
)

_START, _RUN, _LOOK, _AFTER, _KEEP = "Start here", "Run", "Look", "After a failure", "Keep in order"

# Where each command is found: a function, or the ``app`` of a module that has several.
_PLACES: Final = {
    "demo": (_START, "demo:demo"),
    "init": (_START, "setup:init"),
    "migrate": (_START, "setup:migrate"),
    "doctor": (_START, "setup:doctor"),
    "up": (_RUN, "work:up"),
    "worker": (_RUN, "work:worker"),
    "serve": (_RUN, "serve:serve"),
    "mcp": (_RUN, "mcp:mcp"),
    "relay": (_RUN, "work:relay"),
    "publish": (_RUN, "publish:publish"),
    "pause": (_RUN, "deps:pause"),
    "resume": (_RUN, "deps:resume"),
    "top": (_LOOK, "top:top"),
    "attention": (_LOOK, "attention:attention"),
    "events": (_LOOK, "events:app"),
    "task": (_LOOK, "task:task"),
    "batches": (_LOOK, "batches:app"),
    "schedules": (_LOOK, "schedules:app"),
    "reservations": (_LOOK, "reservations:app"),
    "deps": (_LOOK, "deps:app"),
    "transports": (_LOOK, "transports:app"),
    "dlq": (_AFTER, "dlq:app"),
    "groups": (_AFTER, "groups:app"),
    "keys": (_AFTER, "keys:app"),
    "plan": (_AFTER, "plans:plan"),
    "run": (_AFTER, "plans:run_plan"),
    "redrives": (_AFTER, "redrives:app"),
    "shadow": (_AFTER, "repair:shadow"),
    "replay": (_AFTER, "repair:replay"),
    "reconcile": (_KEEP, "reconcile:app"),
    "policy": (_KEEP, "policies:app"),
    "token": (_KEEP, "tokens:app"),
    "audit": (_KEEP, "audit:app"),
    "purge": (_KEEP, "acts:purge"),
    "alerts": (_KEEP, "watch:alerts"),
    "dashboard": (_KEEP, "watch:dashboard"),
}


@cache
def _built(name: str) -> Any:
    """Import a command and make it ready to run."""
    panel, place = _PLACES[name]
    module, _, attribute = place.partition(":")
    found = getattr(import_module(f"redrive.operate.cli.{module}"), attribute)
    holder = typer.Typer(rich_markup_mode="rich", pretty_exceptions_enable=False)
    if isinstance(found, typer.Typer):
        holder.add_typer(found, name=name, rich_help_panel=panel)
    else:
        holder.command(name, rich_help_panel=panel)(found)
    return typer.main.get_group(holder).commands[name]


class _WhenAsked(UserDict[str, Any]):
    """Commands by name; None stands for one that was not asked for yet. To import one takes half the time of all."""

    def __getitem__(self, name: str) -> Any:
        return self.data[name] or _built(name)


class _Root(Commands):
    """Lists the commands in their order, and imports the one that is run."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        self.commands = _WhenAsked({**dict.fromkeys(_PLACES), **self.commands})

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ARG002 - it is called with it
        return list(self.commands)


app = typer.Typer(
    cls=_Root,
    name="redrive",
    help="What happens after a failure: look at events, understand dead letters, send them round again.",
    epilog=_EPILOG,
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(wanted: bool) -> None:
    if wanted:
        print(f"redrive {__version__}")
        raise typer.Exit


@app.callback()
def before_any_command(
    ctx: typer.Context,
    url: Annotated[
        str | None,
        typer.Option("--url", "-u", metavar="URL", envvar="REDRIVE_URL", help="Database (sqlite:///redrive.db)."),
    ] = None,
    _version_wanted: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Take what is said before the command."""
    ctx.obj = Settings(url)
    log_to_stderr("warning")


@app.command(
    "bench",
    rich_help_panel=_KEEP,
    add_help_option=False,
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
)
def bench(ctx: typer.Context) -> None:
    """Measure speed here, beside the raw driver and other libraries."""
    # Imported when asked for: it needs drivers and peers that the other commands do not.
    from redrive.operate.cli.bench.commands import bench as commands  # noqa: PLC0415 - see above

    ended = typer.main.get_command(commands).main(args=list(ctx.args), prog_name="redrive bench", standalone_mode=False)
    raise typer.Exit(ended if isinstance(ended, int) else 0)
