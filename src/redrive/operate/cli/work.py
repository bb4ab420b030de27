"""`redrive worker`, `redrive relay` and `redrive up`: run handlers, or only routes and intakes, until told to stop.

The first SIGINT or SIGTERM stops claiming and lets running handlers finish; the second hands everything back at once.
With several processes a parent starts them, passes signals on, starts one anew that crashed, and ends with the last.
"""

import asyncio
import gc
import os
import shlex
import signal
import sys
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Annotated, Any, Final

import typer
from rich.live import Live
from rich.text import Text

from redrive.app import Redrive
from redrive.clock import SystemClock
from redrive.errors import ConfigurationError, StoreUnavailable
from redrive.logs import log
from redrive.operate.cli import serve, show
from redrive.operate.cli.outcome import INTERRUPTED, BadInput, Code, say
from redrive.operate.cli.shared import (
    DEFAULT_URL,
    AppArgument,
    LogFormat,
    LogFormatOption,
    Settings,
    UrlOption,
    app_with_handlers,
    log_to_stderr,
    run,
    seconds_from,
    shown,
)
from redrive.operate.cli.signals import on_signals
from redrive.operate.cli.text import number, plural
from redrive.operate.endpoint import address_from, metrics_endpoint
from redrive.operate.views import overview
from redrive.transport.relay import QUEUE
from redrive.worker import Worker

_MOST_PROCESSES: Final = 256
_FIRST_PAUSE: Final = 0.5
_LONGEST_PAUSE: Final = 30.0
_STEADY_SECONDS: Final = 60.0  # a child that lived so long starts again without a pause
_HANDLER_THREAD: Final = "redrive-handler"
_IDLE_SECONDS: Final = 0.2  # an idle thread of the pool ends by itself within this


@dataclass(frozen=True, slots=True)
class Wanted:
    """How to work."""

    app: str
    concurrency: int
    queues: tuple[str, ...] | None
    grace: str
    drain: bool
    generation: int | None = None
    children: int | None = None
    metrics: tuple[str, int] | None = None
    log_format: LogFormat = LogFormat.AUTO


ConcurrencyOption = Annotated[int, typer.Option("--concurrency", "-c", min=1, max=10_000, help="Handlers at once.")]
QueueOption = Annotated[list[str] | None, typer.Option("--queue", "-q", help="Only these queues; may be repeated.")]
GenerationOption = Annotated[
    int | None,
    typer.Option("--generation", "-g", min=0, help="Serve events of this generation; without it: the app's."),
]
ChildrenOption = Annotated[
    int | None, typer.Option("--children", min=1, max=1_000, help="Processes for isolated handlers; one a core.")
]
MetricsOption = Annotated[
    str | None,
    typer.Option(
        "--metrics", metavar="HOST:PORT", help="Answer Prometheus here; further processes on the ports after it."
    ),
]
GraceOption = Annotated[str, typer.Option("--grace", metavar="SPAN", help="How long handlers may finish on stop.")]


def worker(  # noqa: PLR0917 - typer gives every option by name
    ctx: typer.Context,
    app: AppArgument,
    processes: Annotated[
        int, typer.Option("--processes", "-p", min=1, max=_MOST_PROCESSES, help="So many, watched by this one.")
    ] = 1,
    concurrency: ConcurrencyOption = 100,
    queue: QueueOption = None,
    generation: GenerationOption = None,
    drain: Annotated[bool, typer.Option("--drain", help="Run what is due, redrives too, then end.")] = False,
    grace: GraceOption = "30s",
    children: ChildrenOption = None,
    metrics: MetricsOption = None,
    log_format: LogFormatOption = LogFormat.AUTO,
    parent: Annotated[int | None, typer.Option("--parent", hidden=True)] = None,
) -> None:
    """Run handlers. Ctrl-C lets them finish; a second one hands everything back at once."""
    seconds_from(grace, "--grace")
    where = _address(metrics)
    queues = tuple(queue) if queue else None
    wanted = Wanted(app, concurrency, queues, grace, drain, generation, children, where, log_format)
    log_to_stderr("info", log_format)
    loaded = _loaded(ctx, app)
    _leave(run(_Parent(wanted, loaded, processes).run() if processes > 1 else _work(loaded, wanted, parent=parent)))


def relay(
    ctx: typer.Context,
    app: AppArgument,
    concurrency: ConcurrencyOption = 300,
    drain: Annotated[bool, typer.Option("--drain", help="Send and take what there is, then end.")] = False,
    grace: GraceOption = "30s",
) -> None:
    """Send what the routes of an app have to send, and take what its intakes bring; run no other handlers."""
    seconds_from(grace, "--grace")
    log_to_stderr("info")
    loaded = _loaded(ctx, app)
    if not loaded.traffic.relays and not loaded.traffic.intakes:
        raise BadInput(f"{app} has neither routes nor intakes: app.relay('order.paid', to=…), app.intake(…)")
    queues = loaded.traffic.queues or (QUEUE,)  # with intakes only, one that stays empty
    _leave(run(_work(loaded, Wanted(app, concurrency, queues, grace, drain))))


def up(  # noqa: PLR0917 - typer gives every option by name
    ctx: typer.Context,
    app: AppArgument,
    concurrency: ConcurrencyOption = 100,
    queue: QueueOption = None,
    grace: GraceOption = "30s",
    children: ChildrenOption = None,
    host: serve.HostOption = serve.DEFAULT_HOST,
    port: Annotated[
        int | None, typer.Option("--port", min=0, max=65_535, help="Serve on this port; 8321 or the next free one.")
    ] = None,
    open_: serve.OpenOption = False,
    no_serve: Annotated[bool, typer.Option("--no-serve", help="Only work; serve nothing.")] = False,
    metrics: MetricsOption = None,
    log_format: LogFormatOption = LogFormat.AUTO,
    url: UrlOption = None,
) -> None:
    """Bring everything up in one terminal: tables, a worker, the web side, and a line that says how it goes."""
    seconds_from(grace, "--grace")
    where = _address(metrics)
    queues = tuple(queue) if queue else None
    wanted = Wanted(app, concurrency, queues, grace, drain=False, children=children, metrics=where)
    level = "warning" if sys.stderr.isatty() else "info"  # on a terminal the status line says the rest
    log_to_stderr(level, log_format)
    named = url or (ctx.find_object(Settings) or Settings()).url
    if named is not None and named != os.environ.get("REDRIVE_URL"):
        os.environ["REDRIVE_URL"] = named  # apps read it when they are imported
    else:
        named = None
    loaded = _loaded(ctx, app, named)
    served = None if no_serve else serve.Door(host, port, open_for_viewing=open_)
    _leave(run(_up(loaded, wanted, served)))


def _loaded(ctx: typer.Context, name: str, url: str | None = None) -> Redrive:
    settings = ctx.find_object(Settings) or Settings()
    app = app_with_handlers(name)
    given = url or settings.url
    if given and given not in (app.url, None if url else os.environ.get("REDRIVE_URL")):
        raise BadInput(f"{name} names its own database ({shown(app.url)}): leave --url out, or read REDRIVE_URL there")
    return app


def _address(metrics: str | None) -> tuple[str, int] | None:
    try:
        return None if metrics is None else address_from(metrics)
    except ConfigurationError as error:
        raise BadInput(f"--metrics: {error}") from None


def _leave(code: int) -> None:
    """End now, even if a handler in a thread does not: its event was handed back."""
    threads = [each for each in threading.enumerate() if each.name.startswith(_HANDLER_THREAD)]
    for each in threads:
        each.join(_IDLE_SECONDS)
    if any(each.is_alive() for each in threads):
        log.warning("handlers in threads do not end, leaving them behind", threads=len(threads))
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    if code:
        raise typer.Exit(code)


# --- one process ---


async def _work(app: Redrive, wanted: Wanted, *, parent: int | None = None) -> int:
    async with app:
        working = app.worker(
            concurrency=wanted.concurrency,
            queues=wanted.queues,
            drain=wanted.grace,
            generation=wanted.generation,
            children=wanted.children,
        )
        async with _metrics(app, wanted):
            return await (_drained(working) if wanted.drain else _until_told(working, parent))


@asynccontextmanager
async def _metrics(app: Redrive, wanted: Wanted) -> AsyncIterator[None]:
    if wanted.metrics is None:
        yield
    else:
        async with metrics_endpoint(app, *wanted.metrics):
            yield


async def _drained(working: Worker) -> int:
    """Run what is due. A signal ends it at once; what was claimed goes back by its session's end."""
    task = asyncio.create_task(working.drain())

    def give_up(_count: int) -> None:
        task.cancel()

    with on_signals(give_up):
        try:
            tally = await task
        except asyncio.CancelledError:
            return INTERRUPTED
    log.info("drained", delivered=tally.delivered, retried=tally.retried, dead_lettered=tally.dead_lettered)
    return Code.DONE


async def _until_told(working: Worker, parent: int | None = None) -> int:
    halted = False

    def on_signal(count: int) -> None:
        nonlocal halted
        if count == 1:
            log.info("stopping: running handlers may finish, a second signal ends them", worker=working.name)
            working.stop()
        else:
            halted = True
            log.warning("stopping at once: what is running is handed back", worker=working.name)
            working.stop(at_once=True)

    gc.collect()
    gc.freeze()  # what was loaded until now stays: nobody need look through it again
    with on_signals(on_signal):
        async with _orphan_watch(parent, working.stop):
            await working.run()
    return Code.HALTED if halted else Code.DONE


@asynccontextmanager
async def _orphan_watch(parent: int | None, stop: Callable[[], None]) -> AsyncIterator[None]:
    """Stop when the parent is gone: nobody else would tell us to."""
    clock = SystemClock()

    async def watch() -> None:
        while os.getppid() == parent:
            await clock.sleep(1.0)
        log.warning("the parent process is gone: stopping")
        stop()

    async with _while_running(watch() if parent is not None else None):
        yield


@asynccontextmanager
async def _while_running(beside: Any) -> AsyncIterator[None]:
    task = None if beside is None else asyncio.create_task(beside)
    try:
        yield
    finally:
        if task is not None:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task


# --- several processes ---


class _Parent:
    """Starts children, keeps them running, ends with the last of them."""

    def __init__(self, wanted: Wanted, app: Redrive, processes: int) -> None:
        self._wanted = wanted
        self._app = app
        self._processes = processes
        self._clock = SystemClock()
        self._children: dict[int, asyncio.subprocess.Process] = {}
        self._stopping = asyncio.Event()
        self._signals = 0

    async def run(self) -> int:
        async with self._app:  # an app that cannot be opened is said once, before any child
            pass
        log.info("starting processes", processes=self._processes, app=self._wanted.app)
        with on_signals(self._pass_on):
            codes = await asyncio.gather(*(self._keep(place) for place in range(self._processes)))
        log.info("all processes have ended")
        return Code.HALTED if self._signals > 1 else max((abs(code) for code in codes), default=0)

    def _pass_on(self, count: int) -> None:
        self._signals = count
        if count == 1:
            log.info("stopping all processes; a second signal ends their handlers")
        self._stopping.set()
        for child in self._children.values():
            with suppress(ProcessLookupError):
                child.send_signal(signal.SIGTERM)

    async def _keep(self, place: int) -> int:
        """Keep one child running until it has ended in good order."""
        pause = _FIRST_PAUSE
        while True:
            began = self._clock.monotonic()
            child = await self._start(place)
            self._children[place] = child
            if self._stopping.is_set():  # a signal came while it was being started
                with suppress(ProcessLookupError):
                    child.send_signal(signal.SIGTERM)
            code = await child.wait()
            self._children.pop(place, None)
            if self._stopping.is_set() or code == 0:
                return code if code > 0 and code not in (Code.HALTED, INTERRUPTED) else 0
            if self._clock.monotonic() - began > _STEADY_SECONDS:
                pause = _FIRST_PAUSE
            log.error("a worker process ended, starting it anew", pid=child.pid, code=code, pause_seconds=pause)
            with suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._stopping.wait()
                return 0
            pause = min(pause * 2, _LONGEST_PAUSE)

    async def _start(self, place: int) -> asyncio.subprocess.Process:
        wanted = self._wanted
        command = [sys.executable, "-m", "redrive.operate.cli", "worker", wanted.app, "--parent", str(os.getpid())]
        command += ["--concurrency", str(wanted.concurrency), "--grace", wanted.grace]
        command += [word for queue in wanted.queues or () for word in ("--queue", queue)]
        command += ["--drain"] if wanted.drain else []
        command += [] if wanted.generation is None else ["--generation", str(wanted.generation)]
        command += ["--children", str(wanted.children)] if wanted.children else []
        command += ["--log-format", wanted.log_format.value]
        if wanted.metrics is not None:
            host, port = wanted.metrics
            command += ["--metrics", f"[{host}]:{port + place if port else 0}"]
        # A session of its own: Ctrl-C at the terminal is for the parent alone, which passes it on once.
        return await asyncio.create_subprocess_exec(*command, start_new_session=True, stdin=asyncio.subprocess.DEVNULL)


# --- up ---


async def _up(app: Redrive, wanted: Wanted, door: serve.Door | None) -> int:
    await app.store.open()
    try:
        for name in await app.store.migrate():
            say(f"✓ {name} applied to {shown(app.url)}")
    except BaseException:
        await app.store.close()
        raise
    async with app:
        working = app.worker(
            concurrency=wanted.concurrency, queues=wanted.queues, drain=wanted.grace, children=wanted.children
        )
        targets = ", ".join(sorted(app.handlers))
        say(f"✓ {plural(len(app.handlers), 'handler')} at work on {shown(app.url)}: {targets}")
        say("  Ctrl-C stops; `redrive events ls` in another terminal shows what happens.")
        if app.url != DEFAULT_URL:
            say(f"  There, name this database first: export REDRIVE_URL={shlex.quote(shown(app.url))}")
        async with serve.beside(app, door), _metrics(app, wanted), _status_line(app, working):
            code = await _until_told(working)
    say(f"✓ stopped: {plural(working.tally.delivered, 'event')} delivered")
    return code


@asynccontextmanager
async def _status_line(app: Redrive, working: Worker) -> AsyncIterator[None]:
    if not sys.stderr.isatty():
        yield
        return
    clock = SystemClock()
    with Live(console=show.console(stderr=True), refresh_per_second=4, transient=True) as live:

        async def refresh() -> None:
            while True:
                with suppress(StoreUnavailable):
                    live.update(_line(await overview(app), working))
                await clock.sleep(0.5)

        async with _while_running(refresh()):
            yield


def _line(found: dict[str, Any], working: Worker) -> Text:
    tally = working.tally
    line = Text("● ", style="green")
    for count, noun, style in (
        (tally.delivered, "delivered", "green"),
        (tally.retried, "retried", "yellow"),
        (found["in_flight"], "in flight", "cyan"),
        (found["pending"], "waiting", ""),
        (found["blocked"], "blocked", "magenta"),
        (found["failed"], "dead letters", "red"),
    ):
        line.append(number(int(count)), style=f"bold {style}" if count else "dim")
        line.append(f" {noun}   ", style="" if count else "dim")
    return line
