"""What the commands share: their common options, opening the database, loading an app, reading ids."""

import asyncio
import getpass
import importlib
import importlib.util
import json
import os
import pkgutil
import sys
from collections.abc import AsyncIterator, Coroutine, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Final, TypeVar
from urllib.parse import urlsplit, urlunsplit

import typer

from redrive.app import Redrive
from redrive.duration import parse_duration
from redrive.errors import BadDuration, ConfigurationError, RedriveError
from redrive.event import Event
from redrive.logs import log
from redrive.operate import views
from redrive.operate.cli.outcome import BadInput, NothingMatched
from redrive.operate.cli.text import one_line

T = TypeVar("T")

DEFAULT_URL: Final = "sqlite:///redrive.db"
_LEVELS: Final = {"debug": 10, "info": 20, "warning": 30, "error": 40, "silent": 50}


class Output(StrEnum):
    """How a result is printed."""

    TABLE = "table"
    JSON = "json"
    JSONL = "jsonl"


class LogFormat(StrEnum):
    """How the log is written."""

    AUTO = "auto"
    CONSOLE = "console"
    JSON = "json"


UrlOption = Annotated[
    str | None,
    typer.Option("--url", "-u", metavar="URL", help="Database; REDRIVE_URL or sqlite:///redrive.db without it."),
]
OutputOption = Annotated[Output, typer.Option("--output", "-o", help="For people, or for programs.")]
ReasonOption = Annotated[
    str | None, typer.Option("--reason", "-r", metavar="TEXT", help="Why; it is kept on the trail. Required.")
]
ByOption = Annotated[str | None, typer.Option("--by", metavar="NAME", help="Who; without it: cli and your user name.")]
IdsArgument = Annotated[
    list[str], typer.Argument(metavar="ID...", help="Ids, or unique beginnings of them; - reads them from input.")
]
LogFormatOption = Annotated[
    LogFormat, typer.Option("--log-format", envvar="REDRIVE_LOG_FORMAT", help="For people, or one JSON object a line.")
]
AppArgument = Annotated[str, typer.Argument(metavar="APP", help="Your app as module:attribute, like app:app.")]
DryRunOption = Annotated[bool, typer.Option("--dry-run", help="Say what would happen, and do nothing.")]


@dataclass(frozen=True, slots=True)
class Settings:
    """What was said before the command."""

    url: str | None = None


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run a command's asynchronous part."""
    return asyncio.run(work)


# --- the database ---


def url_from(ctx: typer.Context, url: str | None) -> str:
    """Decide on the database: said with the command, before it, in the environment, or the default."""
    return said_url(ctx, url) or DEFAULT_URL


def said_url(ctx: typer.Context, url: str | None) -> str | None:
    """Return the database that was named, if one was."""
    settings = ctx.find_object(Settings) or Settings()
    return url or settings.url or os.environ.get("REDRIVE_URL")


def shown(url: str) -> str:
    """Write a URL without its password."""
    try:
        parts = urlsplit(url)
        if parts.password is None:
            return url
        place = parts.netloc.rpartition("@")[2]
        return urlunsplit(parts._replace(netloc=f"{parts.username}:•••@{place}"))
    except ValueError:
        return url.partition("://")[0] + "://…"


def app_for(url: str, *, migrate: bool | None = None) -> Redrive:
    """Make an app without handlers: enough to look, to act and to publish."""
    try:
        urlsplit(url).port  # noqa: B018 - raises when it is no number
        return Redrive(url, source="cli", migrate=migrate)
    except ValueError as error:
        if isinstance(error, RedriveError):
            raise
        raise ConfigurationError(f"{shown(url)!r} is not a database URL: {error}") from error


def sqlite_path(app: Redrive) -> Path | None:
    """Return the file behind the app, if there is one."""
    path = getattr(app.store, "path", None)
    return None if path is None or path == ":memory:" else Path(path)


@asynccontextmanager
async def existing(place: str | Redrive) -> AsyncIterator[Redrive]:
    """Open a database that must be there: looking at one never creates it."""
    app = app_for(place, migrate=False) if isinstance(place, str) else place
    path = sqlite_path(app)
    if path is not None and path.parent.is_dir() and not path.exists():
        raise ConfigurationError(
            f"there is no file {path}: name the database with --url or REDRIVE_URL, or create it with `redrive migrate`"
        )
    async with app:
        yield app


# --- apps ---


def load_app(name: str) -> Redrive:
    """Import ``module:attribute``, with the current folder on the path; a bare name is one of the apps we bring."""
    brought = _brought()
    module_name, colon, attribute = (f"redrive.apps.{name}:app" if name in brought else name).partition(":")
    if not colon or not module_name or not attribute:
        raise BadInput(
            f"{name!r} does not name an app: write module:attribute, like app:app for `app` in app.py"
            + (f", or one of {', '.join(sorted(brought))}" if brought else "")
        )
    log.set_up()  # before the app's own imports, which may log
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    found: Any = _imported(module_name)
    for part in attribute.split("."):
        try:
            found = getattr(found, part)
        except AttributeError:
            apps = sorted(each for each, value in vars(found).items() if isinstance(value, Redrive))
            hint = f"it has {', '.join(apps)}" if apps else "define one: app = Redrive(…)"
            raise ConfigurationError(f"{module_name} has no {attribute!r}: {hint}") from None
    if not isinstance(found, Redrive):
        raise ConfigurationError(f"{name} is a {type(found).__name__}, not a Redrive: name the app itself")
    return found


def _brought() -> set[str]:
    """Name the apps that come with the package; they stand above us, so none is imported to know it."""
    spec = importlib.util.find_spec("redrive.apps")
    places = spec.submodule_search_locations if spec is not None else None
    return {each.name for each in pkgutil.iter_modules(places or ())}


def app_with_handlers(name: str) -> Redrive:
    """Import an app that must have handlers."""
    app = load_app(name)
    if not app.handlers:
        raise ConfigurationError(f"{name} has no handlers: register one with @{name.partition(':')[2]}.handler('…')")
    return app


def place_from(ctx: typer.Context, url: str | None, app: str | None) -> str | Redrive:
    """Decide where to act: with an app, on its own database; else on the one that was named."""
    if app is None:
        return url_from(ctx, url)
    loaded = app_with_handlers(app)
    if (said_url(ctx, url) or loaded.url) != loaded.url:
        raise BadInput(
            f"{app} works on {shown(loaded.url)}, and --url or REDRIVE_URL names another database: "
            "leave that out, or have the app read REDRIVE_URL"
        )
    return loaded


def _imported(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(error.name + ".")):
            raise ConfigurationError(
                f"there is no module {name!r} in {Path.cwd()}: run this in the folder of {name.partition('.')[0]}.py, "
                "or write a first one with `redrive init`"
            ) from None
        raise ConfigurationError(f"importing {name} failed: {error}: install it, or correct the import") from error
    except RedriveError:
        raise
    except (Exception, SystemExit) as error:
        raise ConfigurationError(
            f"importing {name} failed: {type(error).__name__}: {one_line(str(error), 300)}: "
            "correct it (REDRIVE_DEBUG=1 shows the traceback)"
        ) from error


# --- arguments ---


def seconds_from(text: str, option: str) -> float:
    """Read a duration that was given on the command line."""
    try:
        return parse_duration(text)
    except BadDuration as error:
        raise BadInput(f"{option}: {error}") from None


def actor(by: str | None) -> str:
    """Say who acts."""
    if by is not None:
        if not by.strip():
            raise BadInput("--by is empty: say who does it, or leave it out")
        return by
    try:
        return f"cli:{getpass.getuser()}"
    except (KeyError, OSError, ImportError):  # a container without user names
        return "cli:unknown"


def reason_from(reason: str | None, verb: str) -> str:
    """Insist on a reason: whoever reads the trail in a year will want it."""
    if reason is None or not reason.strip():
        raise BadInput(f'say why: --reason "…" is kept on the trail of every event you {verb}')
    return reason


def ids_from(ids: Sequence[str]) -> list[str]:
    """Take ids from the arguments, or from standard input for ``-``: one a line, or JSON lines with an id."""
    given: list[str] = []
    for each in ids:
        if each != "-":
            given.append(each)
            continue
        for line in sys.stdin:
            given += [_id_in(line)] if line.lstrip().startswith("{") else line.split()
    if not given:
        raise NothingMatched("no ids came in: nothing was done")
    return list(dict.fromkeys(given))


def _id_in(line: str) -> str:
    try:
        return str(json.loads(line)["id"])
    except (ValueError, KeyError, TypeError):
        raise BadInput(f"this line of input has no id: {one_line(line, 60)}") from None


async def found(app: Redrive, ids: Sequence[str]) -> list[Event]:
    """Look up all ids before anything is done to any of them."""
    events = [await views.find(app, each) for each in ids]
    return list({event.id: event for event in events}.values())


# --- logging ---


def log_to_stderr(level: str, form: LogFormat = LogFormat.AUTO) -> None:
    """Send the log to standard error: for eyes on a terminal, as JSON lines elsewhere, unless somebody said how.

    Set up when there is something to log, or an app is loaded that may log, too: most commands have nothing to say.
    """
    log.before_first = partial(_set_up_log, level, form)
    if "structlog" in sys.modules:
        log.set_up()


def _set_up_log(level: str, form: LogFormat) -> None:
    import structlog  # noqa: PLC0415 - see above

    least = _LEVELS.get(os.environ.get("REDRIVE_LOG", "").lower() or level, _LEVELS["info"])
    tty = sys.stderr.isatty() if form is LogFormat.AUTO else form is LogFormat.CONSOLE
    ending: list[Any] = (
        [structlog.dev.ConsoleRenderer(colors="NO_COLOR" not in os.environ and sys.stderr.isatty(), pad_event_to=32)]
        if tty
        else [structlog.processors.format_exc_info, structlog.processors.JSONRenderer(ensure_ascii=False, default=str)]
    )
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="%H:%M:%S" if tty else "iso", utc=not tty),
            *ending,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(least),
        # Looked up for each line: a live view takes standard error over for a while.
        logger_factory=lambda *_: structlog.PrintLogger(sys.stderr),
        cache_logger_on_first_use=False,
    )
