"""Deliver: bring one claimed event to its handler.

The payload is decoded to the type the handler asks for; what does not fit is a terminal failure before the handler has
seen it. ``async def`` handlers run on the event loop, ``def`` handlers in threads. Whatever a handler raises, of any
shape, leaves here as an exception for ``settle`` to write down.

Next: ``settle``.
"""

import asyncio
import contextvars
import inspect
import typing
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial
from types import UnionType
from typing import Any, Literal, Protocol
from uuid import UUID

from redrive import check
from redrive.classify import DEFAULT_RULES, Rule, matches
from redrive.duration import span
from redrive.errors import ConfigurationError, PayloadInvalid
from redrive.payload import Decoder, decode_headers
from redrive.policy import RetryPolicy
from redrive.rate import Rate
from redrive.store.base import HEADERS, PAYLOAD, Row, Unreadable

DeadLetterHook = Callable[["DeadLetter", Any], Awaitable[None]]
"""Called with the dead letter and the transaction (``redrive.Settling``) in which it is written."""

RetryHook = Callable[["Retry", Any], Awaitable[None]]
"""Called with the retry and the transaction (``redrive.Settling``) in which it is scheduled."""


@dataclass(frozen=True, slots=True)
class Handler:
    """Your code, and what was said about it when it was registered."""

    types: tuple[str, ...]
    target: str
    function: Callable[..., Any]
    retry: RetryPolicy | None = None
    rules: Sequence[Rule] = DEFAULT_RULES
    on_dead_letter: DeadLetterHook | None = None
    on_retry: RetryHook | None = None
    effects: str | None = None
    on_failed: str = "block"
    compensate_on: tuple[str, ...] = ()
    compensates: Callable[..., Any] | None = None
    takes_none: bool = False
    decoder: Decoder[Any] = field(default_factory=Decoder)
    takes_context: bool = True
    is_async: bool = True
    timeout: float | None = None
    deadline: float | None = None
    isolation: Literal["process"] | None = None
    is_limited: bool = False
    needs: tuple[str, ...] = ()
    degraded: str = "block"
    brake: bool = True
    concurrency: int | None = None
    rate: Rate | None = None

    @property
    def name(self) -> str:
        """How logs name it."""
        return f"{self.home}.{self.function.__qualname__}"

    @property
    def home(self) -> str:
        """The module of the function."""
        return self.function.__module__


@dataclass(frozen=True, slots=True)
class FailedAttempt:
    """What every hook is told."""

    id: UUID
    type: str
    target: str
    source: str
    subject: str | None
    payload: Any
    idempotency_key: str
    retry_key: str | None
    correlation_id: str | None
    attempts: int
    error_class: str
    error_type: str
    last_error: str
    safe_to_retry: bool


@dataclass(frozen=True, slots=True)
class DeadLetter(FailedAttempt):
    """What an ``on_dead_letter`` hook is told."""

    failed_at: datetime
    """When it became a dead letter, as it is stored."""


@dataclass(frozen=True, slots=True)
class Retry(FailedAttempt):
    """What an ``on_retry`` hook is told; ``attempts`` are those that count so far."""

    next_retry_at: datetime
    """When the next attempt may run, as it is stored."""


def handler_from(
    function: Callable[..., Any],
    *,
    types: tuple[str, ...],
    target: str,
    retry: RetryPolicy | None,
    rules: Sequence[Rule],
    on_dead_letter: DeadLetterHook | None,
    on_retry: RetryHook | None = None,
    effects: str | None = None,
    timeout: str | float | timedelta | None = None,
    deadline: str | float | timedelta | None = None,
    isolation: Literal["process"] | None = None,
    on_failed: str = "block",
    compensate_on: tuple[str, ...] = (),
    is_compensation: bool = False,
    needs: tuple[str, ...] = (),
    degraded: str = "block",
    brake: bool = True,
    concurrency: int | None = None,
    rate: Rate | None = None,
) -> Handler:
    """Read off a function's signature what it wants to be given."""
    check.function(function, "a handler", "a function")
    if not hasattr(function, "__qualname__"):
        raise ConfigurationError(f"a handler takes a function, not {check.shown(function)}: wrap it in a def")
    given = inspect.signature(function).parameters.values()
    parameters = [each for each in given if each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD)]
    unmet = [each.name for each in given if each.kind is each.KEYWORD_ONLY and each.default is each.empty]
    if unmet:
        message = (
            f"{function.__qualname__} needs {', '.join(unmet)} by keyword, and a handler is called with "
            "(payload) or (payload, ctx): give it a default"
        )
        raise ConfigurationError(message)
    if not 1 <= len(parameters) <= 2:  # noqa: PLR2004 - payload, context
        message = f"{function.__qualname__} must take (payload) or (payload, ctx), not {len(parameters)} parameters"
        raise ConfigurationError(message)
    if inspect.isasyncgenfunction(function) or inspect.isgeneratorfunction(function):
        message = f"{function.__qualname__} is a generator: a handler returns, it does not yield"
        raise ConfigurationError(message)
    _check_isolation(function, isolation)
    try:
        hints = typing.get_type_hints(function)
    except NameError as error:
        message = f"the annotations of {function.__qualname__} cannot be read ({error}): import the names they use"
        raise ConfigurationError(message) from error
    wanted = hints.get(parameters[0].name, Any)
    _check_places(function.__qualname__, wanted, hints.get(parameters[1].name, Any) if parameters[1:] else Any)
    return Handler(
        types=types,
        target=target,
        function=function,
        retry=retry,
        rules=rules,
        on_dead_letter=on_dead_letter,
        on_retry=on_retry,
        effects=effects,
        on_failed=on_failed,
        compensate_on=compensate_on,
        compensates=function if is_compensation else None,
        takes_none=type(None) in (wanted, *typing.get_args(wanted)),
        decoder=Decoder(wanted),
        takes_context=len(parameters) == 2,  # noqa: PLR2004
        is_async=inspect.iscoroutinefunction(function),
        timeout=None if timeout is None else span(timeout, "timeout"),
        deadline=None if deadline is None else span(deadline, "deadline"),
        isolation=isolation,
        is_limited=timeout is not None or deadline is not None,
        needs=needs,
        degraded=degraded,
        brake=brake,
        concurrency=concurrency,
        rate=rate,
    )


def _check_places(name: str, first: object, second: object) -> None:
    """Refuse a context in the place of the payload, and a payload in that of the context."""
    if _is_context(first):
        raise ConfigurationError(f"{name} takes the context first: a handler takes (payload, ctx)")
    kinds = typing.get_args(second) if _is_union(second) else (second,)
    if not any(_is_context(each) or _may_be_context(each) for each in kinds):
        raise ConfigurationError(
            f"the second parameter of {name} is the context, and is annotated as {check.shown(second)}: "
            "a handler takes (payload, ctx: Context)"
        )


def _is_union(hint: object) -> bool:
    return typing.get_origin(hint) in (typing.Union, UnionType)


def _is_context(hint: object) -> bool:
    return isinstance(hint, type) and matches(hint, "redrive.context.Context")


def _may_be_context(hint: object) -> bool:
    """Say whether an annotation leaves room for a context: Any, object, a protocol, a type variable."""
    kind = typing.get_origin(hint) or hint
    return kind in (Any, object) or not isinstance(kind, type) or getattr(kind, "_is_protocol", False)


def _check_isolation(function: Callable[..., Any], isolation: object) -> None:
    """Refuse what a child process could not find again: it looks for the function by its module and name."""
    if isolation is None:
        return
    if isolation != "process":
        message = f"isolation takes 'process' or None, not {check.shown(isolation)}"
        raise ConfigurationError(message)
    if "<" in function.__qualname__:
        message = (
            f"isolation='process' needs a handler at the top level of a module, and {function.__qualname__} is inside "
            "a function or has no name: a child process could not import it"
        )
        raise ConfigurationError(message)
    if function.__module__ == "__main__":
        message = (
            f"isolation='process' needs a handler that a child process can import, and {function.__qualname__} is in "
            "the script itself: move it into a module and start it with `redrive worker module:app`"
        )
        raise ConfigurationError(message)


class FollowUps(Protocol):
    """The follow-ups of one attempt, as a ``Context`` keeps them until the handler has succeeded."""

    async def write_follow_ups(self) -> None: ...


async def deliver(handler: Handler, row: Row, context: FollowUps, threads: Executor) -> None:
    """Run the handler once. Returns when it has succeeded; everything else is raised."""
    check_readable(row)
    payload = handler.decoder(row[PAYLOAD])
    arguments = (payload, context) if handler.takes_context else (payload,)
    if handler.is_async:
        await handler.function(*arguments)
        await context.write_follow_ups()
        return
    run = partial(contextvars.copy_context().run, _in_thread, handler.function, arguments)
    error = await asyncio.get_running_loop().run_in_executor(threads, run)
    if error is not None:
        raise error
    await context.write_follow_ups()


def check_readable(row: Row) -> None:
    """Refuse a row that somebody wrote into the database and that cannot be read: no handler would understand it."""
    if type(row[PAYLOAD]) is Unreadable:
        raise PayloadInvalid(f"the event cannot be read: {row[PAYLOAD]}")
    if row[HEADERS] != "{}":
        try:
            decode_headers(row[HEADERS])
        except PayloadInvalid as error:
            raise PayloadInvalid(f"the event cannot be read: headers {error}") from error


def _in_thread(function: Callable[..., Any], arguments: tuple[Any, ...]) -> BaseException | None:
    # Returned instead of raised: a SystemExit or StopIteration must not pass through the executor's machinery.
    try:
        function(*arguments)
    except BaseException as error:  # noqa: BLE001 - any shape of failure is the handler's failure
        return error
    return None
