"""Classify: say what kind of failure this was, and keep what a person needs to see.

Whatever a handler raised becomes an error class, terminal or transient, and safe to retry or not. Rules are
tried in order; what no rule knows is transient and ``broken``, because burying an event that one more
attempt would deliver is worse than one attempt too many.

``describe`` and ``fingerprint`` work on any exception at all: huge, cyclic, unprintable.

Next: ``policy`` decides on another attempt, ``settle`` writes all of this down, ``group`` counts it.
"""

import errno
import hashlib
import reprlib
import sys
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from pathlib import Path
from types import FrameType, TracebackType

from pydantic_core import ValidationError

from redrive import errors
from redrive.event import ErrorClass
from redrive.policy import RetryPolicy

__all__ = [
    "DEFAULT_RULES", "Described", "Failure", "Rule",
    "civil", "classify", "describe", "fingerprint", "leaves", "matches",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Failure:
    """What is known about a failed attempt (W2)."""

    error_class: ErrorClass
    terminal: bool
    safe_to_retry: bool
    error_type: str
    message: str
    is_outside: bool = False
    """Whether something outside does not answer that is not a database of the handler's own."""


@dataclass(frozen=True, slots=True)
class Described:
    """A failure as the child process saw it, where the traceback was; an exception carries it to the parent."""

    failure: Failure
    text: str
    fingerprint: str

    def put_on(self, exc: BaseException) -> BaseException:
        """Let ``classify``, ``describe`` and ``fingerprint`` say of this exception what was said there."""
        exc.__dict__[_DESCRIBED] = self
        return exc

    @staticmethod
    def on(exc: BaseException) -> "Described | None":
        """Find what was said elsewhere, if anything was."""
        return exc.__dict__.get(_DESCRIBED)


_DESCRIBED = "__redrive_described__"


@dataclass(frozen=True, slots=True, eq=False)  # compared by identity: a cache key of 50 rules stays cheap
class Rule:
    """Exceptions of this class, or of the class with this dotted name (never imported), fail like this."""

    matches: type[BaseException] | str
    error_class: ErrorClass
    terminal: bool
    safe_to_retry: bool = True


def _each(error_class: ErrorClass, *matches: type[BaseException] | str, terminal: bool = False) -> tuple[Rule, ...]:
    return tuple(Rule(each, error_class, terminal) for each in matches)


_UNKNOWN = Rule(BaseException, ErrorClass.BROKEN, terminal=False)
_ANY_OS_ERROR = Rule(OSError, ErrorClass.BROKEN, terminal=False)  # files, memory, this machine
# A plain OSError with one of these, or one that asyncio made of several, speaks of the network.
_NETWORK_ERRNOS = frozenset(
    getattr(errno, name)
    for name in (
        "EADDRNOTAVAIL", "ECONNABORTED", "ECONNREFUSED", "ECONNRESET", "EHOSTDOWN", "EHOSTUNREACH", "ENETDOWN",
        "ENETRESET", "ENETUNREACH", "ENOTCONN", "ESHUTDOWN", "ETIMEDOUT",
    )
    if hasattr(errno, name)
)  # fmt: skip
_SEVERAL_ERRORS = "Multiple exceptions: [Errno "
# Errors of a database that the handler talks to: never those of a dependency, unless that declares them.
_DATABASE_RULES = (
    *_each(
        ErrorClass.TIMED_OUT,
        "psycopg.errors.QueryCanceled",
        "asyncpg.exceptions.QueryCanceledError",
        "sqlalchemy.exc.TimeoutError",
    ),
    *_each(
        ErrorClass.DEPENDENCY_UNAVAILABLE,
        errors.StoreUnavailable,
        "sqlite3.OperationalError",
        "psycopg.OperationalError",
        "psycopg.errors.OperationalError",
        "psycopg2.OperationalError",
        "asyncpg.exceptions.PostgresConnectionError",
        "asyncpg.exceptions.OperatorInterventionError",
        "asyncpg.exceptions.InsufficientResourcesError",
        "asyncpg.exceptions.TransactionRollbackError",  # deadlock, serialization: "operational" in psycopg
        "asyncpg.exceptions._base.InterfaceError",
        "asyncpg.InterfaceError",
        "asyncpg.exceptions._base.InternalClientError",  # what is left of a connection that was cut in the middle
        "asyncpg.exceptions.ReadOnlySQLTransactionError",  # a primary that has become a standby
        "sqlalchemy.exc.OperationalError",
        "django.db.utils.OperationalError",
    ),
)
_OF_A_DATABASE = frozenset(_DATABASE_RULES)
# SQLite's "operational" errors are outages and wrong SQL alike: its codes tell them apart, or the words of its outages.
_SQLITE_BUGS = frozenset((1, 20, 21, 25))  # SQLITE_ERROR, _MISMATCH, _MISUSE, _RANGE
_SQLITE_OUTAGES = ("locked", "busy", "disk", "unable to open", "readonly", "interrupted")

DEFAULT_RULES: tuple[Rule, ...] = (
    # what a handler says about itself
    *_each(ErrorClass.DEPENDENCY_UNAVAILABLE, errors.DependencyUnavailable),
    *_each(ErrorClass.DEPENDENCY_DEGRADED, errors.DependencyDegraded),
    *_each(ErrorClass.INVALID, errors.PolicyViolation, terminal=True),
    *_each(ErrorClass.MISSING, errors.PrerequisiteMissing),
    Rule(errors.Rejected, ErrorClass.REJECTED, terminal=True, safe_to_retry=False),
    *_each(ErrorClass.REJECTED, errors.TerminalHandlerError, terminal=True),
    # data that no further attempt will change; a plain ValueError out of a handler's body is not among these
    *_each(
        ErrorClass.INVALID,
        errors.PayloadInvalid,
        errors.PayloadRefused,
        ValidationError,
        "pydantic.v1.error_wrappers.ValidationError",
        "sqlite3.IntegrityError",
        "psycopg.IntegrityError",
        "psycopg.errors.IntegrityError",
        "psycopg2.IntegrityError",
        "asyncpg.exceptions.IntegrityConstraintViolationError",
        "asyncpg.IntegrityConstraintViolationError",
        "sqlalchemy.exc.IntegrityError",
        "django.db.utils.IntegrityError",
        terminal=True,
    ),
    # code that no further attempt will change
    *_each(ErrorClass.BROKEN, errors.StepMisused, terminal=True),
    # took too long: no attempt is left when that was the deadline
    *_each(ErrorClass.TIMED_OUT, errors.DeadlinePassed, terminal=True),
    Rule(errors.ProcessDied, ErrorClass.WORKER_LOST, terminal=False, safe_to_retry=False),
    *_DATABASE_RULES,
    # took too long (before OSError and TransportError, of which some are subclasses)
    *_each(
        ErrorClass.TIMED_OUT,
        TimeoutError,  # also asyncio's and concurrent.futures' since 3.11
        "httpx.TimeoutException",
        "requests.exceptions.Timeout",
        "urllib3.exceptions.TimeoutError",
    ),
    # something outside does not answer
    *_each(
        ErrorClass.DEPENDENCY_UNAVAILABLE,
        ConnectionError,
        "asyncio.exceptions.IncompleteReadError",
        "socket.gaierror",
        "socket.herror",
        "ssl.SSLError",
        "httpx.TransportError",
        "requests.exceptions.ConnectionError",
        "urllib3.exceptions.ProtocolError",
        "urllib3.exceptions.MaxRetryError",
        "aiohttp.client_exceptions.ClientConnectionError",
        "smtplib.SMTPConnectError",
        "smtplib.SMTPServerDisconnected",
    ),
    # an answer that somebody did give
    *_each(ErrorClass.BROKEN, "requests.exceptions.RequestException", "urllib.error.HTTPError"),
    *_each(ErrorClass.DEPENDENCY_UNAVAILABLE, "urllib.error.URLError"),
    _ANY_OS_ERROR,
    # MemoryError, SystemExit, KeyboardInterrupt, and whatever else there is
    _UNKNOWN,
)

_MOST_LEAVES = 1_000


def classify(exc: BaseException, policy: RetryPolicy, rules: Sequence[Rule] = DEFAULT_RULES) -> Failure:
    """Judge a failed attempt; a group of exceptions is terminal only when every one in it is."""
    known = Described.on(exc)
    if known is not None:
        return known.failure
    rules = rules if isinstance(rules, tuple) else tuple(rules)
    declared = isinstance(exc, policy.terminal_errors)
    if isinstance(exc, BaseExceptionGroup) and not declared:
        failures = [_judge(leaf, policy, rules) for leaf in _leaves(exc)]
        chosen = next((f for f in failures if not f.terminal), failures[0])
        safe = all(f.safe_to_retry for f in failures)
        own = _own_safety(exc)
        return Failure(
            chosen.error_class,
            chosen.terminal,
            safe if own is None else own,
            chosen.error_type,
            _message(exc, 1_000),
            any(f.is_outside for f in failures),
        )
    return _judge(exc, policy, rules)


def _judge(exc: BaseException, policy: RetryPolicy, rules: tuple[Rule, ...]) -> Failure:
    rule = _first_match(type(exc), rules)
    error_class, terminal = rule.error_class, rule.terminal
    if rule is _ANY_OS_ERROR and _is_of_network(exc):
        error_class = ErrorClass.DEPENDENCY_UNAVAILABLE
    elif rule in _OF_A_DATABASE and _is_wrong_sql(exc):
        error_class = ErrorClass.BROKEN
    if isinstance(exc, policy.terminal_errors):
        # The handler's author knows it as an answer, so it is no bug.
        error_class = ErrorClass.REJECTED if error_class is ErrorClass.BROKEN else error_class
        terminal = True
    own = _own_safety(exc)
    safe = rule.safe_to_retry if own is None else own
    is_outside = error_class in _NO_ANSWER and rule not in _OF_A_DATABASE and not _is_own_limit(exc)
    return Failure(error_class, terminal, safe, _name(type(exc)), _message(exc, 1_000), is_outside)


_NO_ANSWER = (ErrorClass.DEPENDENCY_UNAVAILABLE, ErrorClass.TIMED_OUT)


def _is_of_network(exc: BaseException) -> bool:
    if not isinstance(exc, OSError):
        return False
    several = exc.errno is None and exc.args and isinstance(exc.args[0], str)
    return exc.errno in _NETWORK_ERRNOS or bool(several and exc.args[0].startswith(_SEVERAL_ERRORS))


def _is_own_limit(exc: BaseException) -> bool:
    """Say whether this may be a limit of the handler's own: neither the operating system nor a library says so."""
    return type(exc) is TimeoutError and exc.errno is None


def _is_wrong_sql(exc: BaseException) -> bool:
    """Say whether an operational error is one of the statement: SQLAlchemy and Django wrap the driver's."""
    driver = getattr(exc, "orig", None) or exc.__cause__ or exc
    if not matches(type(driver), "sqlite3.OperationalError"):
        return False
    code = getattr(driver, "sqlite_errorcode", None)
    if isinstance(code, int):
        return code & 0xFF in _SQLITE_BUGS
    said = str(driver.args[0]) if driver.args else ""
    return not any(word in said for word in _SQLITE_OUTAGES)


def matches(kind: type, wanted: type[BaseException] | str) -> bool:
    """Say whether a class is this one or below it; a text is the dotted name of a class that need not be imported."""
    if isinstance(wanted, str):
        return any(_name(each) == wanted for each in kind.__mro__)
    return issubclass(kind, wanted)


def leaves(exc: BaseException) -> Iterator[BaseException]:
    """Yield the exceptions of a group, or the one there is."""
    return _leaves(exc) if isinstance(exc, BaseExceptionGroup) else iter((exc,))


def _match(kind: type, rules: tuple[Rule, ...]) -> Rule:
    names = {_name(each) for each in kind.__mro__}
    for rule in rules:
        if rule.matches in names if isinstance(rule.matches, str) else issubclass(kind, rule.matches):
            return rule
    return _UNKNOWN


def _full_name(kind: type) -> str:
    name = str(kind.__qualname__)
    module = kind.__module__
    return _storable(name if module == "builtins" else f"{module}.{name}")


# Cached: 0.3 µs instead of 3 for the rules. Bounded, because classes can be made at run time.
_first_match: Callable[[type, tuple[Rule, ...]], Rule] = lru_cache(maxsize=4_096)(_match)
_name: Callable[[type], str] = lru_cache(maxsize=4_096)(_full_name)


_LOOKED_AT = ("__class__", "args", "__cause__", "__context__", "__traceback__", "__notes__", "__getattribute__")
_MOST_LOOKED_AT = 100
_HEAP_TYPE = 1 << 9  # a class that was written in Python


def civil(exc: BaseException) -> BaseException:
    """Return the exception, or another in its place if it, or one that it came from, cannot even be looked at.

    Its class may have properties that raise. Nobody could say then how the attempt ended: it would be made for ever.
    """
    waiting, seen = [exc], set[int]()
    while waiting and len(seen) < _MOST_LOOKED_AT:
        each = waiting.pop()
        if id(each) in seen:
            continue
        seen.add(id(each))
        try:
            if not _is_plain(type(each)):
                for name in _LOOKED_AT:
                    getattr(each, name, None)
            others = each.exceptions if isinstance(each, BaseExceptionGroup) else ()
            waiting += [other for other in (each.__cause__, each.__context__, *others) if other is not None]
        except BaseException:  # noqa: BLE001 - a property of a stranger's class
            return _in_its_place(exc)
    return exc


def _leaves_alone(kind: type) -> bool:
    """Say whether a class leaves alone what exceptions have by nature."""
    own = [each for each in kind.__mro__ if each.__flags__ & _HEAP_TYPE]
    return not any(name in vars(each) for each in own for name in _LOOKED_AT)


_is_plain: Callable[[type], bool] = lru_cache(maxsize=4_096)(_leaves_alone)


def _in_its_place(exc: BaseException) -> BaseException:
    told = RuntimeError(f"{_name(type(exc))} was raised, and cannot be looked at: its properties raise")
    place = vars(BaseException)["__traceback__"].__get__(exc)
    return told.with_traceback(place)


def _own_safety(exc: BaseException) -> bool | None:
    try:
        own = getattr(exc, "safe_to_retry", None)
    except Exception:  # noqa: BLE001 - a property of a stranger's class
        return None
    return own if isinstance(own, bool) else None


def _leaves(group: BaseExceptionGroup[BaseException]) -> Iterator[BaseException]:
    waiting: list[BaseException] = [group]
    found = 0
    while waiting and found < _MOST_LEAVES:
        exc = waiting.pop()
        if isinstance(exc, BaseExceptionGroup):
            waiting.extend(reversed(exc.exceptions))
        else:
            found += 1
            yield exc


# --- describe ---

_MOST_FRAMES = 20
_MOST_LINKS = 8
_MOST_NOTES = 5
_MOST_ARGS = 8
_MOST_ITEMS = 10
_MOST_SHOWN_LEAVES = 10
_MOST_VALIDATION_ERRORS = 20
_BULKY = (bytes, bytearray, list, tuple, dict, set, frozenset, deque)


_ENGINE = frozenset(
    str(Path(__file__).with_name(name)) for name in ("slots.py", "deliver.py", "tracing.py", "child.py")
)


def describe(exc: BaseException, limit: int = 8_192) -> str:
    """Tell what happened in at most ``limit`` characters: the message, where it was raised, its cause."""
    lines: list[str] = []
    above: BaseException | None = None
    for each in _chain(exc):
        known = Described.on(each)
        if known is not None:
            lines.append(known.text if above is None else f"Caused by {known.text}")
            break
        message = _message(each, limit // 2 if above is None else limit // _MOST_LINKS)
        head = f"{_name(type(each))}: {message}" if message else _name(type(each))
        link = "" if above is None else "Caused by " if above.__cause__ is each else "While handling "
        lines.append(link + head)
        above = each
        lines.extend(_notes(each, limit // _MOST_LINKS))
        if isinstance(each, BaseExceptionGroup):
            lines.extend(_leaf_heads(each, limit // _MOST_LINKS))
        lines.extend(_frames(each.__traceback__))
    return _storable(_cut("\n".join(lines), limit))


def _chain(exc: BaseException) -> Iterator[BaseException]:
    """Go from an exception to its cause, to the cause of that; chains can be long, or bite their own tail."""
    seen: set[int] = set()
    each: BaseException | None = exc
    while each is not None and id(each) not in seen and len(seen) < _MOST_LINKS:
        seen.add(id(each))
        yield each
        # Not `cause or context`: an exception may count as false.
        implicit = None if each.__suppress_context__ else each.__context__
        each = implicit if each.__cause__ is None else each.__cause__


def _frames(tb: TracebackType | None) -> Iterator[str]:
    kept: deque[TracebackType] = deque(maxlen=_MOST_FRAMES)
    count = 0
    while tb is not None and tb.tb_next is not None and tb.tb_frame.f_code.co_filename in _ENGINE:
        tb = tb.tb_next  # how the handler was called helps nobody to mend it
    while tb is not None:
        kept.append(tb)
        count += 1
        tb = tb.tb_next
    if count > len(kept):
        yield f"  … {count - len(kept)} outer frames left out"
    for each in kept:
        code = each.tb_frame.f_code
        # Without the source line: reading the file would cost more than all the rest.
        yield f'  File "{code.co_filename}", line {each.tb_lineno}, in {code.co_name}'


def _notes(exc: BaseException, limit: int) -> Iterator[str]:
    notes = getattr(exc, "__notes__", None)
    if isinstance(notes, list):
        yield from (_cut(note, limit) for note in notes[:_MOST_NOTES] if isinstance(note, str))


def _leaf_heads(group: BaseExceptionGroup[BaseException], limit: int) -> Iterator[str]:
    for count, leaf in enumerate(_leaves(group)):
        if count == _MOST_SHOWN_LEAVES:
            yield "  | …"
            return
        yield f"  | {_name(type(leaf))}: {_message(leaf, limit)}"


def _message(exc: BaseException, limit: int) -> str:
    """Return what the exception says, cut before it is formatted wherever that can be done."""
    try:
        return _storable(_cut(_said(exc, limit), limit))
    except BaseException:  # noqa: BLE001 - a stranger's __str__ may raise anything, SystemExit included
        return "(its message cannot be printed)"


def _said(exc: BaseException, limit: int) -> str:
    formatter = type(exc).__str__
    if formatter is BaseException.__str__:
        return _said_by_args(exc.args, limit)
    if formatter is KeyError.__str__ and len(exc.args) == 1:
        return _short_repr(exc.args[0], limit)
    if isinstance(exc, ValidationError) and exc.error_count() > _MOST_VALIDATION_ERRORS:
        return f"{exc.error_count()} validation errors for {exc.title}"  # 300,000 of them take 0.7 s to print
    return str(exc)


def _said_by_args(args: tuple[object, ...], limit: int) -> str:
    if len(args) > 1:
        return "(" + ", ".join(_short_repr(arg, limit) for arg in args[:_MOST_ARGS]) + ")"
    only = args[0] if args else ""
    if isinstance(only, str):
        return only[:]
    return _short_repr(only, limit) if isinstance(only, _BULKY) else str(only)


def _short_repr(value: object, limit: int) -> str:
    if type(value) is str or type(value) is bytes:
        shown = repr(value[:limit])
        return shown if len(value) <= limit else f"{shown}… ({len(value):,} in all)"
    if not isinstance(value, _BULKY):
        return repr(value)
    if isinstance(value, dict):  # reprlib sorts all keys before it takes the first ones
        value = dict(islice(value.items(), _MOST_ITEMS + 1))
    elif isinstance(value, set | frozenset):
        value = set(islice(value, _MOST_ITEMS + 1))
    shortener = reprlib.Repr()
    shortener.maxstring = shortener.maxother = 200
    shortener.maxlist = shortener.maxtuple = shortener.maxdict = shortener.maxset = _MOST_ITEMS
    return shortener.repr(value)


def _cut(text: str, limit: int) -> str:
    if len(text) <= limit:
        return text
    tail = f"… ({len(text):,} characters)"
    return text[: max(0, limit - len(tail))] + tail[:limit]


def _storable(text: str) -> str:
    """Replace what no database or terminal takes: NUL and lone surrogates."""
    if "\0" in text:
        text = text.replace("\0", "\N{REPLACEMENT CHARACTER}")
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


# --- fingerprint ---

_VERSION = "2"  # 1 had the names of folders in it: a deployment to another folder made every failure new
_MOST_FINGERPRINT_FRAMES = 2_000
_REDRIVE = __name__.partition(".")[0]
_OUR_APPS = f"{_REDRIVE}.apps."  # these are handlers like anyone's
_STARTED = ("__main__", "__mp_main__")  # the name of a module that was started instead of imported
_COMPREHENSIONS = ("<listcomp>", "<dictcomp>", "<setcomp>")  # frames of their own before Python 3.12 only


def fingerprint(exc: BaseException, target: str, error_class: str, home: str = "") -> str:
    """Name the cause: the same for the same fault, whatever the payload, the line number, the machine or the folder.

    Places are names of modules and functions; each counts once, where it first appears, so that the depth of a
    recursion does not matter. Only the project's own places count, if there are any. ``home`` is the module of the
    handler: its package belongs to the project even when it is installed among the libraries.
    """
    known = Described.on(exc)
    if known is not None:
        return known.fingerprint
    links = list(_chain(exc))
    frames: dict[int, FrameType] = {}  # by the identity of their code: hashing a code object takes 1 µs
    for each in links:
        tb, count = each.__traceback__, 0
        while tb is not None and count < _MOST_FINGERPRINT_FRAMES:
            frames[id(tb.tb_frame.f_code)] = tb.tb_frame
            tb = tb.tb_next
            count += 1
    package = _package(_main_name() if home in _STARTED else home)
    places = [_place(_module(frame), frame.f_code.co_filename, frame.f_code.co_qualname) for frame in frames.values()]
    ours = [place for place, is_ours in places if is_ours or (package and _package(place) == package)]
    parts = [target, str(error_class), *(_type_name(type(each)) for each in links)]
    for each in links:
        if (known := Described.on(each)) is not None:
            parts.append(known.fingerprint)
        if isinstance(each, BaseExceptionGroup):
            parts += sorted({_type_name(type(leaf)) for leaf in _leaves(each)})
    text = "\0".join((*parts, "", *(ours or [place for place, _ in places])))
    return f"{_VERSION}:{hashlib.sha256(text.encode('utf-8', 'replace')).hexdigest()[:16]}"


@lru_cache(maxsize=8_192)
def _place(module: str, filename: str, function: str) -> tuple[str, bool]:
    """Return ``package.module:Class.function``, and whether that is code of the project."""
    while function.endswith(_COMPREHENSIONS):
        function = function.rpartition(".<locals>.")[0]
    elsewhere = (
        filename.startswith("<")
        or "site-packages" in filename
        or "dist-packages" in filename
        or _package(module) in sys.stdlib_module_names
        or (_package(module) == _REDRIVE and not module.startswith(_OUR_APPS))
    )
    return f"{module}:{function}", not elsewhere


def _package(name: str) -> str:
    return name.partition(":")[0].partition(".")[0]


def _module(frame: FrameType) -> str:
    """Name the module of a frame as an import would; code without a module has the name of its file."""
    name = frame.f_globals.get("__name__")
    if name in _STARTED:
        return _imported_name(frame.f_globals)
    return name if type(name) is str else _stem(frame.f_code.co_filename)


def _type_name(kind: type) -> str:
    """Name a class as if its module had been imported."""
    return f"{_main_name()}.{kind.__qualname__}" if kind.__module__ in _STARTED else _name(kind)


def _main_name() -> str:
    return _imported_name(vars(sys.modules["__main__"]))


def _imported_name(main: Mapping[str, object]) -> str:
    """Name a started module as an import would: ``python -m`` knows the name, a script has that of its file."""
    name, file = getattr(main.get("__spec__"), "name", None), main.get("__file__")
    return name if type(name) is str else _name_by_file(file) if type(file) is str else _STARTED[0]


@lru_cache(maxsize=64)
def _name_by_file(filename: str) -> str:
    parts, folder = [_stem(filename)], Path(filename).parent
    while folder.name and (folder / "__init__.py").is_file():
        parts.insert(0, folder.name)
        folder = folder.parent
    return ".".join(parts)


def _stem(filename: str) -> str:
    """Name a file without its folder and ending, whatever system the path is of."""
    return filename.replace("\\", "/").rpartition("/")[2].partition(".py")[0]
