"""The commands of `redrive bench`: one a scenario, all with the same options."""

import asyncio
import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from redrive.errors import RedriveError
from redrive.operate.cli.bench.measure import BenchFailed, Report, Setup
from redrive.operate.cli.bench.place import place_for
from redrive.operate.cli.bench.scenarios import SCENARIOS

bench = typer.Typer(
    help="Measure speed here, beside the raw driver and other libraries.", no_args_is_help=True, add_completion=False
)

StoreOption = Annotated[str | None, typer.Option("--store", help="sqlite or postgres; without it: both.")]
UrlOption = Annotated[
    str | None,
    typer.Option("--url", help="PostgreSQL server to make new databases on."),
]
FolderOption = Annotated[Path | None, typer.Option("--folder", help="Where SQLite files go; a real disk.")]
RepeatOption = Annotated[int, typer.Option("--repeat", min=1, help="How often; the median counts.")]
EventsOption = Annotated[int | None, typer.Option("--events", min=1, help="How many events.")]
SecondsOption = Annotated[float | None, typer.Option("--seconds", min=0.1, help="How long, where time is the measure.")]
ProcessesOption = Annotated[int, typer.Option("--processes", min=1, help="How many worker processes.")]
PeersOption = Annotated[bool, typer.Option("--peers", help="Measure pgqueuer, huey and others in the same run.")]
RawOption = Annotated[bool, typer.Option("--raw", help="snapshot: the raw loop (plain SKIP LOCKED) as well.")]
ProfileOption = Annotated[
    Path | None, typer.Option("--profile", help="Write where the time goes (cProfile, top 25) to this file.")
]
BrokerOption = Annotated[str, typer.Option("--broker", help="relay, intake: nats or kafka.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def _command(names: list[str]) -> Any:
    def run(  # noqa: PLR0917 - typer gives every option by name
        store: StoreOption = None,
        url: UrlOption = None,
        folder: FolderOption = None,
        repeat: RepeatOption = 3,
        events: EventsOption = None,
        seconds: SecondsOption = None,
        processes: ProcessesOption = 1,
        peers: PeersOption = False,
        raw: RawOption = False,
        profile: ProfileOption = None,
        broker: BrokerOption = "nats",
        as_json: JsonOption = False,
    ) -> None:
        console = Console(stderr=True)
        found: list[dict[str, Any]] = []
        try:
            for kind in ["sqlite", "postgres"] if store is None else [store]:
                with place_for(kind, url, folder) as place, console.status("") as status:
                    setup = Setup(repeat, events, seconds, processes, peers, raw, profile, broker, status.update)
                    for name in names:
                        try:
                            report = asyncio.run(SCENARIOS[name](setup, place))
                        except BenchFailed as error:
                            if len(names) == 1:
                                raise
                            console.print(f"[red]{name} on {kind}: {error}[/red]", soft_wrap=True, highlight=False)
                            found.append({"scenario": name, "store": kind, "error": str(error)})
                            continue
                        found.append(report.as_json(place))
                        if not as_json:
                            status.stop()
                            show(report)
                            status.start()
        except RedriveError as error:
            console.print(f"[red]{error}[/red]", soft_wrap=True, highlight=False)
            raise typer.Exit(1) from error
        if as_json:
            print(json.dumps(found[0] if len(found) == 1 else found, indent=2))
        if any("error" in report for report in found):
            raise typer.Exit(1)

    return run


def show(report: Report) -> None:
    """Print a report for people."""
    console = Console()
    settings = ", ".join(f"{name} {value}" for name, value in report.settings.items())
    table = Table(
        "figure", "median", "min … max", "target", "", title=f"{report.scenario} on {report.store} ({settings})"
    )
    goals = {goal.figure: goal for goal in report.goals}
    for name, value in report.figures.items():
        spread = report.spread.get(name)
        goal = goals.get(name)
        table.add_row(
            name,
            _text(value),
            f"{_text(spread['min'])} … {_text(spread['max'])}" if spread else "",
            f"{'≤' if goal.at_most else '≥'} {_text(goal.wanted)}" if goal else "",
            ("[green]reached[/green]" if goal.reached(value) else "[red]missed[/red]") if goal else "",
        )
    console.print(table)
    if report.table:
        columns = list(report.table[0])
        details = Table(*columns)
        for row in report.table:
            details.add_row(*(_text(row.get(column, "")) for column in columns))
        console.print(details)
    for note in report.notes:
        console.print(note)


def _text(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int | float) else str(value)


for _name, _scenario in SCENARIOS.items():
    bench.command(_name, help=_scenario.__doc__)(_command([_name]))
bench.command("all", help="Every scenario, one after the other.")(_command(list(SCENARIOS)))
