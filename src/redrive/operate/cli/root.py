"""The root: every command, in the order in which one needs them."""

from typing import Annotated

import typer

from redrive import __version__
from redrive.operate.cli import (
    acts,
    attention,
    audit,
    batches,
    demo,
    deps,
    dlq,
    events,
    groups,
    keys,
    mcp,
    plans,
    policies,
    publish,
    reconcile,
    redrives,
    repair,
    reservations,
    schedules,
    serve,
    setup,
    task,
    tokens,
    top,
    transports,
    watch,
    work,
)
from redrive.operate.cli.outcome import Commands
from redrive.operate.cli.shared import Settings, log_to_stderr

_EPILOG = (
    "Exit codes: 0 done, 1 error, 2 usage, 3 nothing matched, 4 refused, 5 halted or a person is needed. "
    "Ids can be cut to a unique beginning."
)

app = typer.Typer(
    cls=Commands,
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


_START, _RUN, _LOOK, _AFTER, _KEEP = "Start here", "Run", "Look", "After a failure", "Keep in order"

app.command("demo", rich_help_panel=_START)(demo.demo)
app.command("init", rich_help_panel=_START)(setup.init)
app.command("migrate", rich_help_panel=_START)(setup.migrate)
app.command("doctor", rich_help_panel=_START)(setup.doctor)

app.command("up", rich_help_panel=_RUN)(work.up)
app.command("worker", rich_help_panel=_RUN)(work.worker)
app.command("serve", rich_help_panel=_RUN)(serve.serve)
app.command("mcp", rich_help_panel=_RUN)(mcp.mcp)
app.command("relay", rich_help_panel=_RUN)(work.relay)
app.command("publish", rich_help_panel=_RUN)(publish.publish)
app.command("pause", rich_help_panel=_RUN)(deps.pause)
app.command("resume", rich_help_panel=_RUN)(deps.resume)

app.command("attention", rich_help_panel=_LOOK)(attention.attention)
app.command("top", rich_help_panel=_LOOK)(top.top)
app.add_typer(events.app, name="events", rich_help_panel=_LOOK)
app.command("task", rich_help_panel=_LOOK)(task.task)
app.add_typer(batches.app, name="batches", rich_help_panel=_LOOK)
app.add_typer(deps.app, name="deps", rich_help_panel=_LOOK)
app.add_typer(schedules.app, name="schedules", rich_help_panel=_LOOK)
app.add_typer(reservations.app, name="reservations", rich_help_panel=_LOOK)
app.add_typer(transports.app, name="transports", rich_help_panel=_LOOK)

app.add_typer(dlq.app, name="dlq", rich_help_panel=_AFTER)
app.add_typer(groups.app, name="groups", rich_help_panel=_AFTER)
app.add_typer(keys.app, name="keys", rich_help_panel=_AFTER)
app.command("plan", rich_help_panel=_AFTER)(plans.plan)
app.command("run", rich_help_panel=_AFTER)(plans.run_plan)
app.add_typer(redrives.app, name="redrives", rich_help_panel=_AFTER)
app.command("shadow", rich_help_panel=_AFTER)(repair.shadow)
app.command("replay", rich_help_panel=_AFTER)(repair.replay)

app.add_typer(reconcile.app, name="reconcile", rich_help_panel=_KEEP)
app.add_typer(policies.app, name="policy", rich_help_panel=_KEEP)
app.add_typer(tokens.app, name="token", rich_help_panel=_KEEP)
app.add_typer(audit.app, name="audit", rich_help_panel=_KEEP)
app.command("purge", rich_help_panel=_KEEP)(acts.purge)
app.command("alerts", rich_help_panel=_KEEP)(watch.alerts)
app.command("dashboard", rich_help_panel=_KEEP)(watch.dashboard)


@app.command(
    "bench",
    rich_help_panel=_KEEP,
    add_help_option=False,
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
)
def bench(ctx: typer.Context) -> None:
    """Measure speed here, beside the raw driver and other libraries."""
    # Imported when asked for: it needs drivers and peers that the other commands do not.
    from redrive.operate.cli.bench import bench as commands  # noqa: PLC0415 - see above

    ended = typer.main.get_command(commands).main(args=list(ctx.args), prog_name="redrive bench", standalone_mode=False)
    raise typer.Exit(ended if isinstance(ended, int) else 0)
