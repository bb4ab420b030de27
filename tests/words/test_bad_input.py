"""Bad input: whatever cannot work is refused where it is written, in one sentence that names the parameter."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from functools import partial
from typing import Any

import pytest

from redrive import (
    ConfigurationError,
    Context,
    Limits,
    PayloadRefused,
    Redrive,
    Retention,
    RetryPolicy,
)
from redrive.check import shown
from redrive.event import Options
from redrive.options import WorkerOptions
from redrive.store.postgres import PostgresStore
from redrive.transport.nats import Nats

HUGE = 10**5_000
TEXTS = ("", " ", "a\nb", "a\0b", "a\u2028b", 7, b"x", None, HUGE, "x" * 10_000)
"""What is no name."""
OPTIONAL_TEXTS = tuple(each for each in TEXTS if each is not None)
KEYS = ("", 7, b"x", HUGE, "x" * 10_000, "a\0b")
"""What is no key; a key may have line breaks, as it comes from others."""
WHOLE = (-1, 1.5, True, "3", "", HUGE, [3])
POSITIVE = (0, *WHOLE)
SPANS = ("", "soon", "a\nb", -1, True, HUGE, [1], object(), float("nan"))
POSITIVE_SPANS = (0, *SPANS)
FLAGS = (1, 0, "yes", "", [True])
LISTS = ("mail", 7, [""], ["a\nb"], [7], {"a": "b"})
WORDS = ("", "sometimes", "a\nb", 7, True)
HOOKS = (7, "hook", lambda *_: None)
RETRY: tuple[Any, ...] = (3, "3", {}, RetryPolicy)
RULES = ("x", 7, [7], [ValueError], {"a": 1})
RATES = ("", "fast", 5, "5\n/s", "-1/s", "0/s", HUGE)


@dataclasses.dataclass(frozen=True)
class Place:
    """Something a user writes, and what each of its parameters does not take."""

    function: Callable[..., Any]
    call: Callable[..., Any]
    bad: dict[str, tuple[Any, ...]]
    left_out: frozenset[str] = frozenset()
    """Whatever they are given is somebody else's to judge."""


async def none(*_: Any) -> None: ...


def app() -> Redrive:
    return Redrive("sqlite:///:memory:")


def handled(type_: Any = "order.paid", *more: Any, **options: Any) -> None:
    async def ship(payload: Any) -> None: ...

    app().handler(type_, *more, **options)(ship)


def undone(**options: Any) -> None:
    app().compensation(**options)(none_of)


async def none_of(payload: Any) -> None: ...


def relayed(*types: Any, **options: Any) -> None:
    app().relay(*(types or ("order.paid",)), **{"to": Nats("nats://127.0.0.1:1").subject("orders"), **options})


def taken_in(inlet: Any = None, **options: Any) -> None:
    app().intake(Nats("nats://127.0.0.1:1").stream("orders", durable="shop") if inlet is None else inlet, **options)


def scheduled(**options: Any) -> None:
    given = {"name": "nightly", "type_": "report.due", **options}
    app().schedules.add(**(given if given.keys() & {"cron", "every"} else {"every": "1h", **given}))


def reconciled(name: Any = "stock", **options: Any) -> None:
    app().reconcilers.add(
        name, **{"desired": dict, "actual": dict, "converge": lambda key, desired, actual: None, **options}
    )


def worked(**options: Any) -> None:
    WorkerOptions(**options).check()


HANDLER = {
    "retry": RETRY, "rules": RULES, "on_dead_letter": HOOKS, "on_retry": HOOKS, "on_failed": WORDS,
    "timeout": POSITIVE_SPANS, "deadline": POSITIVE_SPANS, "concurrency": POSITIVE, "rate": RATES,
}  # fmt: skip
OPTIONS = {
    "id": ("", "x", 7, "a\nb", HUGE, -1), "subject": (7, HUGE, "a\0b", "x" * 10_000), "source": (7, "a\nb", " ", HUGE),
    "idempotency_key": KEYS, "retry_key": KEYS, "ordering_key": KEYS, "correlation_id": (7, HUGE, "a\0b", "x" * 600),
    "causation_id": (7, HUGE, "a\0b", "x" * 600), "headers": (7, "x", [7], {"a": 7}, {7: "a"}, {"": "a"}),
    "queue": TEXTS, "priority": (-1, 7, HUGE, "", "high", True, [1]), "delay": SPANS,
    "due_at": ("", 7, "tomorrow", datetime(2030, 1, 1)), "generation": WHOLE,  # noqa: DTZ001 - without a zone
    "deadline": (*POSITIVE_SPANS, datetime(2000, 1, 1, tzinfo=UTC)), "batch": ("", "x", 7, HUGE, object()),
    "batch_group": (7, "x"),
}  # fmt: skip
PLACES = {
    "Redrive": Place(
        Redrive.__init__, Redrive,
        {
            "url": (*TEXTS, "mysql://x", "sqlite:///x.db?pooler=transaction", "sqlite://"),
            "source": OPTIONAL_TEXTS[1:], "site": OPTIONAL_TEXTS[1:], "retry": RETRY, "rules": RULES,
            "limits": (7, {}, "1MB"), "retention": (7, "30d", {}), "generation": WHOLE, "migrate": FLAGS,
            "notify": FLAGS, "approval_above": WHOLE, "mask": LISTS, "schema": ("", "A", "a\nb", 7, "pg_x", "x" * 99),
            "clock": (7, "now", object()), "transactions": POSITIVE,
        },
    ),
    "handler": Place(
        Redrive.handler, handled,
        {
            **HANDLER, "type_": TEXTS, "more_types": TEXTS, "name": OPTIONAL_TEXTS, "effects": WORDS,
            "isolation": WORDS, "compensate_on": (*LISTS, ["sometimes"]), "needs": (*LISTS, ["throttle:x"]),
            "degraded": WORDS, "brake": FLAGS,
        },
    ),
    "compensation": Place(
        Redrive.compensation, undone,
        {"name": OPTIONAL_TEXTS, **{each: HANDLER[each] for each in ("retry", "rules", "on_dead_letter", "on_retry")}},
    ),
    "dependency": Place(
        Redrive.dependency, lambda name="api", **given: app().dependency(name, **given),
        {
            "name": TEXTS, "errors": (7, [7], [""], ["a\nb"], [int]), "hosts": LISTS, "threshold": POSITIVE,
            "window": POSITIVE_SPANS, "probe_after": POSITIVE_SPANS, "probe_cap": POSITIVE_SPANS,
            "release_rate": (0, -1, "5", True, HUGE, float("nan"), float("inf")),
        },
    ),
    "notices": Place(
        Redrive.notices, lambda *urls, **given: app().notices(*(urls or ("json://127.0.0.1",)), **given),
        {"urls": ("", "a\nb", 7), "on": (*LISTS, ["lunch"]), "most_an_hour": POSITIVE},
    ),
    "route": Place(
        Redrive.route, lambda type_="t", *targets, **given: app().route(type_, *(targets or ("ship",)), **given),
        {"type_": TEXTS, "targets": TEXTS, "queue": OPTIONAL_TEXTS},
    ),
    "relay": Place(
        Redrive.relay, relayed,
        {
            **HANDLER, "types": TEXTS, "to": (7, "orders"), "name": OPTIONAL_TEXTS, "mode": WORDS, "queue": TEXTS,
            "key": (7, "x"),
            "dead_letters": FLAGS, "foreign": FLAGS,
        },
    ),
    "intake": Place(
        Redrive.intake, taken_in,
        {
            "inlet": (7, "orders"), "types": (7, "x", {"a": 7}, {"a": ""}, {"a": "a\nb"}), "parse": (7, "x"),
            "batch": POSITIVE, "max_backlog": POSITIVE, "remember": POSITIVE_SPANS, "identify_by": WORDS,
        },
    ),
    "schedules.add": Place(
        type(app().schedules).add, scheduled,
        {
            "name": TEXTS, "type_": TEXTS, "cron": ("", "a\nb", "every day", 7, "99 * * * *"), "every": POSITIVE_SPANS,
            "offset": ("soon", -1, True, [1]), "tz": ("", "a\nb", "Mars", 7), "catch_up": WORDS,
            "options": ({"bad": 1},),
        },
        frozenset({"payload"}),
    ),
    "reconcilers.add": Place(
        type(app().reconcilers).add, reconciled,
        {
            "name": TEXTS, "desired": (7, "x", None), "actual": (7, "x", None), "converge": (7, "x", None),
            "look": (7, "x"), "correlate": (7, "x"), "every": POSITIVE_SPANS, "retry": RETRY, "timeout": POSITIVE_SPANS,
            "converge_timeout": POSITIVE_SPANS, "needs": LISTS, "queue": TEXTS,
        },
    ),
    "RetryPolicy": Place(
        RetryPolicy.__init__, RetryPolicy,
        {
            "max_attempts": POSITIVE, "base_delay": SPANS, "multiplier": (0, -1, "2", True, HUGE), "max_delay": SPANS,
            "jitter": ("", "some", "a\nb", -1, 2, True, HUGE), "terminal_errors": (7, ["x"], [7]), "first_power": WHOLE,
        },
    ),
    "Retention.of": Place(
        Retention.of, Retention.of, {"delivered": SPANS, "failed": SPANS, "handled": SPANS}
    ),
    "Retention": Place(
        Retention.__init__, Retention, dict.fromkeys(("delivered", "failed", "handled"), (-1, "30d", "", True, HUGE)),
    ),
    "Limits": Place(Limits.__init__, Limits, {"max_bytes": POSITIVE, "max_depth": POSITIVE}),
    "WorkerOptions": Place(
        WorkerOptions.__init__, worked,
        {
            "concurrency": POSITIVE, "queues": (*LISTS, ()), "lease_seconds": (0.5, *SPANS),
            "poll_seconds": POSITIVE_SPANS,
            "drain_seconds": SPANS, "max_lost": POSITIVE, "children": POSITIVE, "unknown_delay_seconds": SPANS,
            "stall_seconds": SPANS, "generation": WHOLE, "name": OPTIONAL_TEXTS[1:], "mask": (7, ["card"]),
        },
    ),
}  # fmt: skip
WORKER = {
    "concurrency": POSITIVE, "queues": (*LISTS, ()), "lease": (0.5, *SPANS), "poll": POSITIVE_SPANS, "drain": SPANS,
    "max_lost": POSITIVE, "children": POSITIVE, "generation": WHOLE, "name": OPTIONAL_TEXTS[1:],
}  # fmt: skip
NAMED = {  # where people know it by another word
    "type_": "type", "more_types": "type", "MAX_ATTEMPTS": "max_attempts",
    "RETRY_BASE_DELAY": "retry_base_delay", "RETRY_MAX_DELAY": "retry_max_delay",
    "types": "type", "targets": "target", "options": "bad", "hosts": "hosts",
    "lease_seconds": "lease", "tz": "time zone", "poll_seconds": "poll", "drain_seconds": "drain", "desired": "desired",
}  # fmt: skip


def unrefused(values: Iterable[Any], name: str, call: Callable[[Any], Any]) -> list[str]:
    """Call with each of these values, and tell which were taken, or refused in other words than one sentence."""
    wrong = []
    for value in values:
        try:
            call(value)
        except (ConfigurationError, PayloadRefused) as error:
            said = str(error)
            if NAMED.get(name, name) not in said.lower() or ("\n" in said and name != "cron") or len(said) > 400:
                wrong.append(f"refused as: {said[:200]}")
        except Exception as error:
            wrong.append(
                f"{type(error).__name__} for {repr(value)[:40] if value is not HUGE else 'HUGE'}: {error!s:.100}"
            )
        else:
            wrong.append(f"taken: {repr(value)[:40] if value is not HUGE else 'HUGE'}")
    return wrong


@pytest.mark.parametrize(("place", "name"), [(place, name) for place in PLACES for name in PLACES[place].bad])
def test_what_a_parameter_does_not_take_is_refused_where_it_is_written(place: str, name: str) -> None:
    where = PLACES[place]
    kind = inspect.signature(where.function).parameters[name].kind
    before = {"more_types": ("order.paid",), "targets": ("order.paid",)}.get(name, ())

    def call(value: Any) -> None:
        if kind is inspect.Parameter.VAR_POSITIONAL:
            where.call(*before, value, **({"name": "both"} if name == "more_types" else {}))
        else:
            where.call(**(value if kind is inspect.Parameter.VAR_KEYWORD else {name: value}))

    assert unrefused(where.bad[name], name, call) == []


def test_every_public_parameter_has_a_line() -> None:
    missing = {
        place: unnamed
        for place, where in PLACES.items()
        if (unnamed := inspect.signature(where.function).parameters.keys() - {"self", "cls"} - where.bad.keys()
            - where.left_out)
    }  # fmt: skip
    missing["worker"] = inspect.signature(Redrive.worker).parameters.keys() - {"self"} - WORKER.keys()
    missing["publish"] = Options.__annotations__.keys() - OPTIONS.keys()

    assert not any(missing.values()), missing


@pytest.mark.parametrize("name", ["type_", *OPTIONS])
async def test_every_way_to_publish_refuses_a_bad_option_before_anything_is_written(sqlite_url: str, name: str) -> None:
    async with Redrive(sqlite_url) as app:
        wrong = []
        for value in TEXTS if name == "type_" else OPTIONS[name]:
            type_: Any = value if name == "type_" else "order.paid"
            options: dict[str, Any] = {} if name == "type_" else {name: value}
            drafts: list[Any] = [("order.paid", {}), (type_, {}, options)]
            ways: list[Callable[[], Any]] = [
                partial(app.publish, type_, {}, **options),
                partial(app.publish_many, drafts),
                partial(app.publish_in, None, type_, {}, **options),
                partial(app.publish_many_in, None, drafts),
                partial(app.publish_sync, type_, {}, **options),
                partial(app.publish_in_sync, None, type_, {}, **options),
            ]
            for way in ways:
                try:
                    done = way()
                    await done if inspect.isawaitable(done) else None
                except Exception as raised:
                    error = raised
                    wrong += unrefused([value], name, lambda _: _raise(error))  # noqa: B023 - called at once
                else:
                    wrong.append(f"taken: {shown(value)}")

        assert wrong == []
        assert sum((await app.store.counts()).values()) == 0


def _raise(error: Exception) -> None:
    raise error


@pytest.mark.parametrize("draft", [7, "order.paid", (), ("order.paid",), ("t", {}, 7), ("t", {}, {}, {}), None])
async def test_what_is_no_draft_is_refused(sqlite_url: str, draft: Any) -> None:
    async with Redrive(sqlite_url) as app:
        with pytest.raises(ConfigurationError, match="events takes"):
            await app.publish_many([("order.paid", {}), draft])
        assert sum((await app.store.counts()).values()) == 0


async def test_what_a_worker_cannot_work_with_is_refused(sqlite_url: str) -> None:
    async with Redrive(sqlite_url) as app:
        wrong = {
            name: unrefused(values, name, lambda value: app.worker(**{name: value}))  # noqa: B023 - called at once
            for name, values in WORKER.items()
        }
    assert not any(wrong.values()), wrong


@dataclasses.dataclass
class Order:
    number: int


def keyword_only(payload: Any, *, tenant: str) -> None: ...
def second_model(payload: Any, order: Order) -> None: ...
def second_dict(payload: Any, order: dict[str, Any]) -> None: ...
def second_text(payload: Any, order: str | None) -> None: ...
def context_first(ctx: Context, payload: Any) -> None: ...
def three(payload: Any, ctx: Context, more: Any) -> None: ...


class Called:
    def __call__(self, payload: Any) -> None: ...


@pytest.mark.parametrize(
    ("function", "says"),
    [
        (keyword_only, "needs tenant by keyword"), (second_model, "second parameter"),
        (second_dict, "second parameter"),
        (second_text, "second parameter"), (context_first, "context first"), (three, "3 parameters"), (7, "a function"),
        (Called(), "a function"), (Order, "a function"),
    ],
)  # fmt: skip
def test_a_function_that_could_not_be_called_is_refused(function: Any, says: str) -> None:
    with pytest.raises(ConfigurationError, match=says):
        app().handler("order.paid")(function)
    assert "order.paid" not in app().handlers


def with_context(payload: Any, ctx: Context) -> None: ...
def with_some_context(payload: Any, ctx: Context | None = None) -> None: ...
def with_anything(payload: Any, ctx: Any) -> None: ...
def with_default(payload: Any, *, tenant: str = "de") -> None: ...
def bare(payload, ctx): ...  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN201 - as people write it


@pytest.mark.parametrize("function", [with_context, with_some_context, with_anything, with_default, bare, none_of])
def test_a_function_that_can_be_called_is_taken(function: Any) -> None:
    shop = app()
    shop.handler("order.paid")(function)
    assert "order.paid" in shop.handlers


@pytest.mark.parametrize("option", ["pooler=trans", "pooler=", "pooler=Transaction", "pooler=a%0Ab"])
def test_an_unknown_pooler_is_refused(option: str) -> None:
    with pytest.raises(ConfigurationError, match=r"\?pooler= takes 'session' or 'transaction'"):
        Redrive(f"postgresql://ann@127.0.0.1/shop?{option}")


def test_the_poolers_there_are_are_taken() -> None:
    for name, pooled in (("session", False), ("transaction", True)):
        store = Redrive(f"postgresql://ann@127.0.0.1/shop?pooler={name}").store
        assert isinstance(store, PostgresStore)
        assert store._pooled is pooled


def test_a_bad_environment_variable_is_refused() -> None:
    spans = ("", "soon", "a\nb", "-1", str(10**20))
    bad = {
        "RETRY_BASE_DELAY": spans, "RETRY_MAX_DELAY": spans,
        "MAX_ATTEMPTS": ("", "many", "3\n4", "-1", "0", str(10**20), "1.5"),
    }  # fmt: skip
    wrong = {
        name: unrefused(values, name, lambda value: RetryPolicy.from_env({name: value}))  # noqa: B023 - called at once
        for name, values in bad.items()
    }
    assert not any(wrong.values()), wrong
