"""Registry: what an app knows before it opens anything: handlers, compensations, dependencies, routes, brokers.

Each line of it is said once, where the module is imported; workers, publishers and operators' tools read it.
"""

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import timedelta
from typing import Any, Final, Literal, TypeVar

from redrive import check, dependency, notice, override
from redrive.classify import Rule
from redrive.deliver import DeadLetterHook, Handler, RetryHook, handler_from
from redrive.dependency import Circuit
from redrive.duration import span
from redrive.errors import ConfigurationError
from redrive.event import COMPENSATE
from redrive.hook import FAILED_TYPE
from redrive.notice import Notices
from redrive.payload import check_name, check_text
from redrive.policy import RetryPolicy
from redrive.publish import NAME_LIMIT
from redrive.rate import Rate
from redrive.steps import COMPENSATE_ON, DEFAULT_COMPENSATE_ON
from redrive.transport.base import Destination, Inlet
from redrive.transport.intake import RAW, Parse
from redrive.transport.relay import QUEUE, MessageKey, Verbatim
from redrive.transport.traffic import Traffic

CompensateOn = Literal["cancelled", "deadline", "dead_letter"]
F = TypeVar("F", bound=Callable[..., Any])

_LARGEST_BATCH: Final = 100_000


class Registry:
    """The part of an app that is told what there is."""

    rules: tuple[Rule, ...]
    traffic: Traffic
    _notices: Notices

    def __init__(self) -> None:
        self._handlers: dict[str, Handler] = {}
        self._circuits: dict[str, Circuit] = {}
        self._targets: dict[str, tuple[str, ...]] = {}
        self._queues: dict[str, str] = {}

    # Handlers

    def handler(
        self,
        type_: str,
        *more_types: str,
        name: str | None = None,
        retry: RetryPolicy | None = None,
        rules: Sequence[Rule] | None = None,
        on_dead_letter: DeadLetterHook | None = None,
        on_retry: RetryHook | None = None,
        effects: Literal["inside", "outside"] | None = None,
        timeout: str | float | timedelta | None = None,
        deadline: str | float | timedelta | None = None,
        isolation: Literal["process"] | None = None,
        on_failed: Literal["block", "pass"] = "block",
        compensate_on: Sequence[CompensateOn] = DEFAULT_COMPENSATE_ON,
        needs: Sequence[str] = (),
        degraded: Literal["block", "proceed"] = "block",
        brake: bool = True,
        concurrency: int | None = None,
        rate: str | None = None,
    ) -> Callable[[F], F]:
        """Register the decorated function for events of one type or several.

        A type's first handler needs no name: its target is the type itself, so that publishers need not know it.
        Every further handler of the type has one; each gets a row, a retry state and a dead letter of its own.
        A handler of several types has a name too. It keeps the order of a key over all its types; ``ctx.type`` tells
        them apart.
        ``on_dead_letter`` and ``on_retry`` are async functions that are called with what failed and the transaction in
        which that is written down: what they write is committed with it. One that fails is an error that people are
        told of, and the event goes its way without it.
        ``effects="inside"`` says that all it does is in its transaction, so that it may be run as a shadow;
        ``"outside"`` that it reaches further, so that it may not. ``on_failed`` is about ordering keys: a dead letter
        holds up the later events of its key (``"block"``) until somebody acts, or lets them pass (``"pass"``).
        ``compensate_on`` says at which ends its steps are undone: when it is ``"cancelled"``, has passed its
        ``"deadline"``, or becomes a ``"dead_letter"``.
        ``timeout`` limits each attempt, ``deadline`` all of them together, counted from the publish.
        ``isolation="process"`` runs it in a child process, which is killed when its time is over.
        ``needs`` names the dependencies it cannot do without: while one is down its events wait, blocked, and spend no
        attempts. With ``degraded="proceed"`` it runs while one works in a reduced mode, and finds it in
        ``ctx.degraded``. ``brake=False``: let its events become dead letters even when nearly all of them fail at once.
        ``concurrency``: how many attempts run at once, ``rate`` ("20/s"): how many start, over all workers. Events
        beyond that wait, and spend no attempt. An operator may say otherwise while it runs: ``set_policy``.
        """
        _check_common(retry, rules, on_dead_letter, on_retry)
        check.choice(on_failed, "on_failed", ("block", "pass"))
        check.maybe(effects, check.choice, "effects", ("inside", "outside"))
        check.choice(degraded, "degraded", ("block", "proceed"))
        check.flag(brake, "brake")
        types = tuple(dict.fromkeys(check_name(each, "type", NAME_LIMIT) for each in (type_, *more_types)))
        if name is None and len(types) > 1:
            raise ConfigurationError(f"a handler of several types ({', '.join(types)}) needs a name: add name='…'")
        target = type_ if name is None else check_name(name, "name", NAME_LIMIT)
        for each in check.texts(compensate_on, "compensate_on", like=COMPENSATE_ON[0]):
            check.choice(each, "compensate_on", COMPENSATE_ON)
        needed = dependency.check_needs(needs, f"the handler of {target!r}")
        at_once = None if concurrency is None else override.check_concurrency(concurrency)
        speed = None if rate is None else Rate.parse(rate)

        def register(function: F) -> F:
            if target in self._handlers:
                taken = self._handlers[target].name
                message = f"target {target!r} is taken by {taken}: give this handler a name of its own, name='…'"
                raise ConfigurationError(message)
            self._handlers[target] = handler_from(
                function,
                types=types,
                target=target,
                retry=retry,
                rules=self.rules if rules is None else (*rules, *self.rules),
                on_dead_letter=on_dead_letter,
                on_retry=on_retry,
                effects=effects,
                timeout=timeout,
                deadline=deadline,
                isolation=isolation,
                on_failed=on_failed,
                compensate_on=tuple(compensate_on),
                needs=needed,
                degraded=degraded,
                brake=brake,
                concurrency=at_once,
                rate=speed,
            )
            for each in types:
                self.route(each, target)
            return function

        return register

    def _register(self, handler: Handler) -> None:
        """Take a handler that another part of the app has made."""
        self._handlers[handler.target] = handler
        for each in handler.types:
            self.route(each, handler.target)

    def compensation(
        self,
        *,
        name: str | None = None,
        retry: RetryPolicy | None = None,
        rules: Sequence[Rule] | None = None,
        on_dead_letter: DeadLetterHook | None = None,
        on_retry: RetryHook | None = None,
    ) -> Callable[[F], F]:
        """Register the decorated function as one that undoes a step: ``ctx.step(…, compensate=it)``.

        It is called with the step's result, and the context if it takes one, as an event of its own: with retries, and
        a dead letter if it cannot be done. If it takes ``None`` as well (``Label | None``), it is also called for a
        step that began and whose end nobody knows. ``name`` is what stays when the function is renamed.
        """
        _check_common(retry, rules, on_dead_letter, on_retry)
        if name is not None:
            check_name(name, "name", NAME_LIMIT - len("compensate:"))

        def register(function: F) -> F:
            check.function(function, "a compensation")
            target = f"compensate:{name or function.__name__}"
            if target in self._handlers:
                taken = self._handlers[target].name
                message = f"a compensation named {name or function.__name__!r} is there ({taken}): give it name='…'"
                raise ConfigurationError(message)
            self._handlers[target] = handler_from(
                function,
                types=(COMPENSATE,),
                target=target,
                retry=retry,
                rules=self.rules if rules is None else (*rules, *self.rules),
                on_dead_letter=on_dead_letter,
                on_retry=on_retry,
                is_compensation=True,
            )
            return function

        return register

    def dependency(
        self,
        name: str,
        *,
        errors: Sequence[type[BaseException] | str] = (),
        hosts: Sequence[str] = (),
        threshold: int = dependency.DEFAULT.threshold,
        window: str | float = dependency.DEFAULT.window,
        probe_after: str | float = dependency.DEFAULT.probe_after,
        probe_cap: str | float = dependency.DEFAULT.probe_cap,
        release_rate: float = dependency.DEFAULT.release_rate,
    ) -> None:
        """Say how a dependency is judged; one that is not declared has the defaults.

        ``threshold`` failures in a row, none more than ``window`` after the one before, open its circuit. A first probe
        comes after ``probe_after``, each further one after twice the wait, up to ``probe_cap``. ``release_rate``: how
        many blocked events a second come back at most. ``errors`` (classes, or dotted names of classes that are not
        imported) and ``hosts`` say which exceptions speak of it.
        """
        self._circuits[name] = Circuit.of(
            name, errors=errors, hosts=hosts, threshold=threshold, window=window, probe_after=probe_after,
            probe_cap=probe_cap, release_rate=release_rate,
        )  # fmt: skip

    def notices(self, *urls: str, on: Sequence[str] = notice.KINDS, most_an_hour: int = 30) -> None:
        """Tell people, once for each matter: a new failure, one that is back, a redrive that halted, a dependency.

        The addresses are those of Apprise (``slack://…``, ``mailto://…``, ``json://…``); without any they come from
        REDRIVE_NOTICES, with spaces between them. ``on`` names the matters: ``group-new``, ``group-regressed``,
        ``redrive-halted``, ``dependency-opened``, ``dependency-closed``. Workers send them as events: one for each
        matter and address, retried, and visible when they fail. Groups that are muted stay quiet.
        """
        for each in self._notices.to(urls, on=on, most_an_hour=most_an_hour):
            self._register(each)

    def route(self, type_: str, *targets: str, queue: str | None = None) -> None:
        """Say which targets events of a type have, for a process that publishes but does not handle them.

        ``queue``: the one that events of these targets go into, whatever the publisher says.
        """
        check_name(type_, "type", NAME_LIMIT)
        named = [check_name(target, "target", NAME_LIMIT) for target in targets]
        self._targets[type_] = tuple(dict.fromkeys((*self._targets.get(type_, ()), *named)))
        if queue is not None:
            self._queues |= dict.fromkeys(named, check_name(queue, "queue", NAME_LIMIT))

    # Brokers

    def relay(
        self,
        *types: str,
        to: Destination,
        name: str | None = None,
        mode: Literal["structured", "binary"] = "structured",
        key: MessageKey | None = None,
        queue: str = QUEUE,
        retry: RetryPolicy | None = None,
        rules: Sequence[Rule] | None = None,
        on_dead_letter: DeadLetterHook | None = None,
        on_retry: RetryHook | None = None,
        on_failed: Literal["block", "pass"] = "block",
        timeout: str | float | timedelta | None = None,
        deadline: str | float | timedelta | None = None,
        concurrency: int | None = None,
        rate: str | None = None,
        dead_letters: bool = False,
        foreign: bool = False,
    ) -> None:
        """Send events of these types to a broker, as CloudEvents; one is delivered when the broker has acknowledged it.

        Its target is ``relay:<broker>:<destination>``, or ``relay:<name>``; the other options are those of a handler.
        The broker is a dependency: while it is down, events wait and spend no attempts. They go into a ``queue`` of
        their own, so that a process may do nothing else: ``redrive relay``. A process that only publishes need not
        reach the broker; it may have this line, or ``app.route(type, target, queue=…)`` in its place.
        With ``mode="binary"`` the body of a message is the payload as it was published, and the attributes are headers.
        ``key`` makes the key of a message from the payload; without it the event's ordering key is the key.
        ``dead_letters``: no types, but every event that becomes a dead letter, with headers that say where it came from
        and why it failed, in the words of Kafka Connect; a message that could not be read goes as it came.
        ``foreign``: in an app with a ``site``, send what came from other sites, too. Only to where nothing comes back
        from: they would have it twice.
        """
        _check_common(retry, rules, on_dead_letter, on_retry)
        check.choice(on_failed, "on_failed", ("block", "pass"))
        check.flag(dead_letters, "dead_letters")
        check.flag(foreign, "foreign")
        check.maybe(key, check.function, "key", "a function that takes a payload and gives a text or None")
        if not hasattr(to, "broker"):
            check.refuse("to", "a destination like nats.stream('orders') or kafka.topic('orders')", to)
        check.maybe(name, check_name, "name", NAME_LIMIT)
        for each in types:
            check_name(each, "type", NAME_LIMIT)
        if dead_letters and types:
            raise ConfigurationError("dead_letters=True sends the dead letters of all types: leave the types out")
        if dead_letters and key is not None:
            raise ConfigurationError("a dead letter keeps the key it had: leave key out")
        types = (FAILED_TYPE,) if dead_letters else types
        route = self.traffic.relay(
            types, to, mode=mode, queue=check_name(queue, "queue", NAME_LIMIT), name=name, of_dead_letters=dead_letters,
            foreign=foreign, key=key,
        )  # fmt: skip
        self._handlers[check_text(route.target, "name", NAME_LIMIT)] = Handler(
            types=types,
            target=route.target,
            function=route.send,
            retry=retry,
            rules=self.rules if rules is None else (*rules, *self.rules),
            on_dead_letter=on_dead_letter,
            on_retry=on_retry,
            effects="outside",
            on_failed=on_failed,
            decoder=Verbatim(),
            timeout=None if timeout is None else span(timeout, "timeout"),
            deadline=None if deadline is None else span(deadline, "deadline"),
            is_limited=timeout is not None or deadline is not None,
            needs=dependency.check_needs((to.broker.name,), f"the route {route.target!r}"),
            concurrency=None if concurrency is None else override.check_concurrency(concurrency),
            rate=None if rate is None else Rate.parse(rate),
        )
        for each in types:
            self.route(check_text(each, "type", NAME_LIMIT), route.target, queue=route.queue)

    def intake(
        self,
        inlet: Inlet,
        *,
        types: Mapping[str, str] | None = None,
        parse: Parse | None = None,
        batch: int = 500,
        max_backlog: int | None = None,
        remember: str | float = "30d",
        identify_by: Literal["id", "position"] = "id",
    ) -> None:
        """Take messages from a broker and publish them here: stored first, acknowledged then, each once.

        A CloudEvent keeps its type, or gets the one that ``types`` has for it. Plain JSON needs a type for its topic
        there; ``parse`` reads anything else. What cannot be read is kept raw, as a dead letter of the target
        ``intake:<name>``, and is read again when replayed. ``max_backlog``: take nothing while more events than this
        have not ended. ``remember``: how long a repetition is recognised; longer than the broker may bring one again.
        ``identify_by``: by what a message is known that is no CloudEvent: the id that the broker carries beside it
        (``Nats-Msg-Id``), or only its position.
        """
        if not hasattr(inlet, "broker"):
            check.refuse("inlet", "an inlet like nats.consumer('orders') or kafka.group('orders')", inlet)
        if types is not None:
            check.a(types, "types", Mapping, "a mapping of types or topics to types, like {'orders': 'order.paid'}")
            check.texts([*types, *types.values()], "types")
        check.maybe(parse, check.function, "parse")
        check.whole(batch, "batch", 1, _LARGEST_BATCH)
        check.maybe(max_backlog, check.whole, "max_backlog")
        made = self.traffic.intake(
            inlet, types=types, parse=parse, batch=batch, max_backlog=max_backlog, remember=remember,
            identify_by=identify_by,
        )  # fmt: skip
        self._handlers[check_text(made.target, "name", NAME_LIMIT)] = handler_from(
            made.again, types=(RAW,), target=made.target, retry=None, rules=self.rules, on_dead_letter=None
        )

    @property
    def handlers(self) -> dict[str, Handler]:
        """The registered handlers by target."""
        return dict(self._handlers)

    @property
    def circuits(self) -> dict[str, Circuit]:
        """The declared dependencies by name."""
        return dict(self._circuits)


def _check_common(retry: object, rules: object, on_dead_letter: object, on_retry: object) -> None:
    """Check the options that everything has that is tried again."""
    check.maybe(retry, check.a, "retry", RetryPolicy, "a RetryPolicy like RetryPolicy(max_attempts=3)")
    if rules is not None:
        check_rules(rules)
    for hook, name in ((on_dead_letter, "on_dead_letter"), (on_retry, "on_retry")):
        check.maybe(hook, check.function, name, "an async function of (what failed, tx)")
        if inspect.isfunction(hook) and not inspect.iscoroutinefunction(hook):
            check.refuse(name, "an async function of (what failed, tx)", hook)


def check_rules(rules: object) -> tuple[Rule, ...]:
    """Take rules that say which errors are worth another attempt."""
    if isinstance(rules, str | Mapping) or not isinstance(rules, Iterable):
        check.refuse("rules", "a list of Rule(…)", rules)
    return tuple(check.a(each, "rules", Rule, "a list of Rule(…)") for each in rules)
