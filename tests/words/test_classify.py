import asyncio
import errno
import importlib.machinery
import pickle
import socket
import sqlite3
import ssl
import sys
import time
import tracemalloc
import types
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, TypeAdapter, ValidationError

from redrive import errors
from redrive.classify import Rule, classify, describe, fingerprint
from redrive.event import ErrorClass
from redrive.payload import Decoder
from redrive.policy import RetryPolicy

DEFAULT = RetryPolicy()


def judged(exc: BaseException, policy: RetryPolicy = DEFAULT) -> tuple[str, bool]:
    failure = classify(exc, policy)
    return str(failure.error_class), failure.terminal


def raised(function: Callable[[], object]) -> BaseException:
    try:
        function()
    except BaseException as exc:
        return exc
    raise AssertionError("nothing was raised")


def named(dotted: str, *bases: type[BaseException]) -> BaseException:
    """An exception as a library that is not installed here would raise it."""
    module, _, name = dotted.rpartition(".")
    made: type[BaseException] = type(name, bases or (Exception,), {"__module__": module})
    return made("x")


# --- classify ---


@pytest.mark.req("W3", "O4")
@pytest.mark.parametrize(
    ("exc", "error_class", "terminal"),
    [
        (errors.DependencyUnavailable("case-api"), "dependency_unavailable", False),
        (errors.DependencyDegraded("case-api", "read only"), "dependency_degraded", False),
        (errors.PolicyViolation("no"), "invalid", True),
        (errors.PrerequisiteMissing("no stock"), "missing", False),
        (errors.Rejected("no"), "rejected", True),
        (errors.TerminalHandlerError("no"), "rejected", True),
        (errors.PayloadInvalid("no"), "invalid", True),
        (errors.PayloadRefused("no"), "invalid", True),
        (errors.HandlerError("hm"), "broken", False),
        (errors.StoreFull("full"), "dependency_unavailable", False),
        (ConnectionResetError(), "dependency_unavailable", False),
        (socket.gaierror(), "dependency_unavailable", False),
        (ssl.SSLError(), "dependency_unavailable", False),
        (asyncio.IncompleteReadError(b"", 3), "dependency_unavailable", False),
        (OSError(errno.EHOSTUNREACH, "no route"), "dependency_unavailable", False),
        (OSError(errno.ENOSPC, "disk full"), "broken", False),
        (OSError("disk"), "broken", False),
        (OSError("Multiple exceptions: [Errno 111] Connect call failed"), "dependency_unavailable", False),
        (sqlite3.OperationalError("no such column: weight"), "broken", False),
        (sqlite3.OperationalError("unable to open database file"), "dependency_unavailable", False),
        (FileNotFoundError(2, "x"), "broken", False),
        (PermissionError(13, "x"), "broken", False),
        (TimeoutError(), "timed_out", False),
        (ValueError("from the body of a handler"), "broken", False),
        (KeyError("x"), "broken", False),
        (MemoryError(), "broken", False),
        (SystemExit(3), "broken", False),
        (KeyboardInterrupt(), "broken", False),
        (asyncio.CancelledError(), "broken", False),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else None,
)
def test_each_kind_of_failure_has_its_class(exc: BaseException, error_class: str, terminal: bool) -> None:
    assert judged(exc) == (error_class, terminal)


@pytest.mark.req("O4")
def test_a_broken_constraint_is_terminal_in_sqlite() -> None:
    def twice() -> None:
        connection = sqlite3.connect(":memory:")
        try:
            connection.execute("create table t (x integer primary key)")
            connection.execute("insert into t values (1)")
            connection.execute("insert into t values (1)")
        finally:
            connection.close()

    assert judged(raised(twice)) == ("invalid", True)
    assert judged(sqlite3.OperationalError("database is locked")) == ("dependency_unavailable", False)


@pytest.mark.req("O4")
def test_a_broken_constraint_is_terminal_in_psycopg() -> None:
    import psycopg
    import psycopg.errors

    assert judged(psycopg.IntegrityError()) == ("invalid", True)
    assert judged(psycopg.errors.UniqueViolation()) == ("invalid", True)
    assert judged(psycopg.OperationalError()) == ("dependency_unavailable", False)
    assert judged(psycopg.errors.DeadlockDetected()) == ("dependency_unavailable", False)
    assert judged(psycopg.errors.QueryCanceled()) == ("timed_out", False)
    assert judged(psycopg.ProgrammingError()) == ("broken", False)


@pytest.mark.req("O4")
def test_a_broken_constraint_is_terminal_in_asyncpg() -> None:
    import asyncpg

    assert judged(asyncpg.IntegrityConstraintViolationError()) == ("invalid", True)
    assert judged(asyncpg.UniqueViolationError()) == ("invalid", True)
    assert judged(asyncpg.ConnectionDoesNotExistError()) == ("dependency_unavailable", False)
    assert judged(asyncpg.InterfaceError("closed")) == ("dependency_unavailable", False)
    assert judged(asyncpg.TooManyConnectionsError()) == ("dependency_unavailable", False)
    assert judged(asyncpg.DeadlockDetectedError()) == ("dependency_unavailable", False)
    assert judged(asyncpg.UndefinedTableError()) == ("broken", False)


@pytest.mark.req("O4")
def test_a_broken_constraint_is_terminal_in_sqlalchemy() -> None:
    from sqlalchemy import exc

    assert judged(exc.IntegrityError("insert", {}, Exception())) == ("invalid", True)
    assert judged(exc.OperationalError("insert", {}, Exception())) == ("dependency_unavailable", False)
    assert judged(exc.TimeoutError()) == ("timed_out", False)
    assert judged(exc.InvalidRequestError()) == ("broken", False)


@pytest.mark.req("O4")
def test_a_broken_constraint_is_terminal_in_django() -> None:
    from django.db import utils

    assert judged(utils.IntegrityError()) == ("invalid", True)
    assert judged(utils.OperationalError()) == ("dependency_unavailable", False)
    assert judged(utils.ProgrammingError()) == ("broken", False)


@pytest.mark.req("O4")
def test_a_validation_error_is_terminal_wherever_it_comes_from() -> None:
    exc = raised(lambda: TypeAdapter(int).validate_python("x"))

    assert isinstance(exc, ValidationError)
    assert judged(exc) == ("invalid", True)
    assert judged(raised(lambda: Decoder(int)('"x"'))) == ("invalid", True)


def test_libraries_that_are_not_installed_are_known_by_name() -> None:
    transport = type(named("httpx.TransportError"))

    assert judged(named("httpx.ConnectError", transport)) == ("dependency_unavailable", False)
    assert judged(named("httpx.ReadTimeout", type(named("httpx.TimeoutException", transport)))) == (
        "timed_out",
        False,
    )
    assert judged(named("elsewhere.TransportError")) == ("broken", False)


@pytest.mark.req("O4")
def test_the_policy_of_a_handler_makes_errors_terminal() -> None:
    policy = RetryPolicy(terminal_errors=(LookupError, ConnectionError))

    assert judged(KeyError("x"), policy) == ("rejected", True)
    assert judged(ConnectionResetError(), policy) == ("dependency_unavailable", True)
    assert judged(ValueError("x"), policy) == ("broken", False)
    assert judged(KeyError("x")) == ("broken", False)


@pytest.mark.req("W2")
def test_a_failure_says_whether_it_is_safe_to_retry() -> None:
    class Charged(Exception):
        safe_to_retry = False

    class Odd(Exception):
        @property
        def safe_to_retry(self) -> bool:
            raise RuntimeError

    assert classify(KeyError(), DEFAULT).safe_to_retry is True
    assert classify(errors.Rejected(), DEFAULT).safe_to_retry is False
    assert classify(errors.Rejected(safe_to_retry=True), DEFAULT).safe_to_retry is True
    assert classify(errors.HandlerError(safe_to_retry=False), DEFAULT).safe_to_retry is False
    assert classify(Charged(), DEFAULT).safe_to_retry is False
    assert classify(Odd(), DEFAULT).safe_to_retry is True


def test_rules_of_a_handler_are_tried_in_order() -> None:
    rules = [
        Rule("builtins.KeyError", ErrorClass.REJECTED, terminal=True),  # builtins go by their bare name
        Rule("KeyError", ErrorClass.MISSING, terminal=False),
        Rule(LookupError, ErrorClass.INVALID, terminal=True),
    ]

    assert classify(KeyError("x"), DEFAULT, rules).error_class == "missing"
    assert classify(IndexError("x"), DEFAULT, rules).error_class == "invalid"
    assert classify(ValueError("x"), DEFAULT, rules).error_class == "broken"


def test_a_group_is_terminal_only_when_all_in_it_are() -> None:
    terminal = ExceptionGroup("g", [errors.Rejected("a"), ExceptionGroup("h", [errors.PolicyViolation("b")])])
    mixed = ExceptionGroup("g", [errors.Rejected("a"), ConnectionResetError("b")])

    assert judged(terminal) == ("rejected", True)
    assert judged(mixed) == ("dependency_unavailable", False)
    assert classify(mixed, DEFAULT).safe_to_retry is False
    assert classify(mixed, DEFAULT).error_type == "ConnectionResetError"
    assert judged(mixed, RetryPolicy(terminal_errors=(ConnectionError,))) == ("rejected", True)
    assert judged(BaseExceptionGroup("g", [SystemExit(1)])) == ("broken", False)


def test_a_failure_carries_a_qualified_type_and_a_bounded_message() -> None:
    failure = classify(sqlite3.IntegrityError("x" * 10_000_000), DEFAULT)

    assert failure.error_type == "sqlite3.IntegrityError"
    assert failure.message.startswith("xxx")
    assert len(failure.message) <= 1_000
    assert classify(KeyError(), DEFAULT).error_type == "KeyError"


def test_errors_for_handlers_survive_the_way_out_of_a_child_process() -> None:
    sent = errors.DependencyUnavailable("case-api", "503", safe_to_retry=False)
    refused = errors.PayloadRefused("too large", field="payload.x", limit="max_bytes=1")

    back, refused_back = pickle.loads(pickle.dumps((sent, refused)))

    assert (back.dependency, str(back), back.safe_to_retry) == ("case-api", "case-api: 503", False)
    assert (refused_back.field, refused_back.limit) == ("payload.x", "max_bytes=1")
    assert str(errors.DependencyDegraded("mail")) == "mail"


# --- describe ---


class Unprintable(Exception):
    def __str__(self) -> str:
        raise SystemExit("in __str__")

    __repr__ = __str__


class BadRepr:
    def __repr__(self) -> str:
        raise ValueError("in __repr__")


def deep(levels: int) -> None:
    if levels:
        deep(levels - 1)
    raise KeyError("bottom")


def described_with_peak(exc: BaseException) -> tuple[str, int]:
    """The description, and how many bytes were held at most while it was made."""
    tracemalloc.start()
    try:
        return describe(exc), tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_a_description_begins_with_the_message_and_shows_the_way_there() -> None:
    lines = describe(raised(lambda: deep(2))).splitlines()

    assert lines[0] == "KeyError: 'bottom'"
    assert [line.split(", in ")[1] for line in lines[-3:]] == ["deep"] * 3
    assert all(line.startswith('  File "') and ", line " in line for line in lines[1:])


def test_a_description_names_causes_contexts_and_notes() -> None:
    def chained() -> None:
        try:
            deep(0)
        except KeyError as exc:
            exc.add_note("while looking for 7")
            raise RuntimeError("outer") from exc

    def during() -> None:
        try:
            deep(0)
        except KeyError:
            raise RuntimeError("outer")  # noqa: B904 - the implicit context is the point

    def hidden() -> None:
        try:
            deep(0)
        except KeyError:
            raise RuntimeError("outer") from None

    assert "\nCaused by KeyError: 'bottom'\nwhile looking for 7\n" in describe(raised(chained))
    assert "\nWhile handling KeyError: 'bottom'\n" in describe(raised(during))
    assert "KeyError" not in describe(raised(hidden))


def test_a_description_lists_what_is_in_a_group() -> None:
    text = describe(ExceptionGroup("two things", [ValueError("a"), KeyError("b")] * 20))

    assert text.startswith("ExceptionGroup: two things (40 sub-exceptions)\n  | ValueError: a\n  | KeyError: 'b'")
    assert text.count("\n") == 11


@pytest.mark.parametrize(
    "huge",
    [
        lambda: ValueError("x" * 50_000_000),
        lambda: ValueError("x" * 50_000_000, 1),
        lambda: ValueError(b"x" * 50_000_000),
        lambda: KeyError("x" * 50_000_000),
        lambda: ValueError(["x" * 1_000] * 1_000_000),
        lambda: ValueError(dict.fromkeys(range(1_000_000), "x")),
        lambda: ValueError(set(range(1_000_000))),
    ],
    ids=["str", "tuple", "bytes", "key", "list", "dict", "set"],
)
def test_a_huge_message_is_cut_before_it_is_formatted(huge: Callable[[], BaseException]) -> None:
    text, peak = described_with_peak(huge())

    assert 3 < len(text) <= 8_192
    assert peak < 1_000_000


def test_hundreds_of_thousands_of_validation_errors_are_only_counted() -> None:
    exc = raised(lambda: TypeAdapter(list[int]).validate_json("[" + ",".join(['"x"'] * 200_000) + "]"))

    text, peak = described_with_peak(exc)

    assert "200000 validation errors" in text
    assert peak < 1_000_000


@pytest.mark.parametrize(
    "exc",
    [
        Unprintable("x"),
        ValueError(BadRepr()),
        ValueError(BadRepr(), 1),
        KeyError(BadRepr()),
        ValueError(10**5_000),
    ],
)
def test_what_cannot_be_printed_is_still_described(exc: BaseException) -> None:
    text = describe(exc)

    assert text.startswith(classify(exc, DEFAULT).error_type)
    assert "cannot be printed" in text


def test_a_recursion_is_described_by_its_tail() -> None:
    text = describe(raised(lambda: deep(sys.getrecursionlimit() * 2)))

    assert text.startswith("RecursionError")
    assert "outer frames left out" in text
    assert len(text) <= 8_192


def test_cyclic_and_endless_chains_come_to_an_end() -> None:
    a, b = ValueError("a"), ValueError("b")
    a.__cause__, b.__cause__ = b, a
    top = ValueError("0")
    for n in range(1, 10_000):
        outer = ValueError(str(n))
        outer.__cause__ = top
        top = outer

    assert describe(a).count("ValueError") == 2
    assert describe(top).count("ValueError") == 8
    assert fingerprint(a, "t", "broken") != fingerprint(top, "t", "broken")


def test_a_cause_that_counts_as_false_is_still_shown() -> None:
    class Empty(Exception):
        def __len__(self) -> int:
            return 0

    exc = ValueError("x")
    exc.__cause__ = Empty()

    assert "Empty" in describe(exc)


@given(st.text(st.characters(codec=None), max_size=200), st.integers(min_value=0, max_value=300))
def test_a_description_can_always_be_stored_and_keeps_its_limit(message: str, limit: int) -> None:
    text = describe(ValueError(message), limit)

    assert len(text) <= limit
    assert "\0" not in text
    assert text.encode().decode() == text


def test_nul_and_lone_surrogates_are_replaced_and_the_rest_is_kept() -> None:
    assert describe(ValueError("a\0b\ud800c€😀")) == "ValueError: a\ufffdb\ufffdc€😀"


# --- fingerprint ---


def compiled(source: str, filename: str, module_name: str = "shop.orders") -> Callable[..., Any]:
    """A function `run` as if it were in that file, which was imported under that name."""
    module = types.ModuleType(module_name)
    exec(compile(source, filename, "exec"), module.__dict__)
    run: Callable[..., Any] = module.__dict__["run"]
    return run


FAULTY = "def run(x=None):\n    raise KeyError(x)\n"


def mark(exc: BaseException, target: str = "ship", error_class: str = "broken") -> str:
    return fingerprint(exc, target, error_class)


def test_a_fingerprint_has_a_version_and_sixteen_hex_digits() -> None:
    version, _, digest = mark(ValueError("x")).partition(":")

    assert version == "2"
    assert len(digest) == 16
    assert int(digest, 16) >= 0


def test_the_same_fault_has_one_fingerprint_whatever_payload_line_or_machine() -> None:
    here = compiled(FAULTY, "/srv/a/shop/orders.py")
    others = [
        compiled("\n\n\n" + FAULTY, name)
        for name in ("/releases/1f3a/orders.py", "C:\\releases\\77c0\\shop\\orders.py", "/opt/shop.zip/shop/orders.pyc")
    ]

    marks = [mark(raised(partial(run, value))) for run in (here, *others) for value in (1, "two")]
    assert len(set(marks)) == 1


def test_a_module_that_was_started_has_the_name_of_one_that_was_imported() -> None:
    imported = raised(compiled(FAULTY, "/srv/shop/orders.py"))
    as_module = compiled(FAULTY, "/srv/shop/orders.py", "__main__")
    as_module.__globals__["__spec__"] = importlib.machinery.ModuleSpec("shop.orders", None)
    script = compiled(FAULTY, "orders.py", "__main__")
    script.__globals__["__file__"] = "D:\\srv\\orders.py"
    spawned = compiled(FAULTY, "orders.py", "__mp_main__")
    spawned.__globals__["__file__"] = "/srv/orders.py"

    assert mark(raised(as_module)) == mark(imported)
    assert mark(raised(script)) == mark(raised(spawned)) == mark(raised(compiled(FAULTY, "orders.py", "orders")))


def test_the_package_of_the_handler_belongs_to_the_project_even_among_the_libraries() -> None:
    library = compiled("def run(inner):\n    inner()\n", "/venv/lib/site-packages/tenacity/core.py", "tenacity.core")
    checkout = compiled(FAULTY, "/srv/shop/orders.py")
    installed = compiled(FAULTY, "/venv/lib/site-packages/shop/orders.py")

    def frames(run: Callable[..., Any]) -> BaseException:
        exc = raised(lambda: library(run))
        while exc.__traceback__ is not None and exc.__traceback__.tb_frame.f_code.co_filename == __file__:
            exc.__traceback__ = exc.__traceback__.tb_next  # without the frames of this test
        return exc

    marks = [fingerprint(frames(run), "ship", "broken", "shop.handlers") for run in (checkout, installed)]
    assert marks[0] == marks[1] != fingerprint(frames(installed), "ship", "broken")


def test_different_faults_have_different_fingerprints() -> None:
    base = compiled(FAULTY, "/srv/shop/orders.py")
    other_type = compiled(FAULTY.replace("KeyError", "IndexError"), "/srv/shop/orders.py")
    other_file = compiled(FAULTY, "/srv/shop/refunds.py", "shop.refunds")
    other_cause = compiled(
        FAULTY.replace("raise KeyError(x)", "raise KeyError(x) from ValueError()"), "/srv/shop/orders.py"
    )
    marks = [
        *(mark(raised(run)) for run in (base, other_type, other_file, other_cause)),
        mark(raised(base), target="refund"),
        mark(raised(base), error_class="timed_out"),
        mark(ExceptionGroup("g", [ValueError()])),
        mark(ExceptionGroup("g", [KeyError()])),
    ]

    assert len(set(marks)) == len(marks)


def test_frames_of_libraries_do_not_change_a_fingerprint() -> None:
    source = "def run(inner):\n    inner()\n"
    ours = compiled(FAULTY, "/srv/shop/orders.py")
    through_one = compiled(source, "/venv/lib/python3/site-packages/one/core.py", "one.core")
    through_two = compiled(source, "/venv/lib/python3/site-packages/two/core.py", "two.core")

    assert mark(raised(lambda: through_one(ours))) == mark(raised(lambda: through_two(ours)))


def test_a_fault_within_a_library_alone_is_told_apart_by_its_frames() -> None:
    one = raised(compiled(FAULTY, "/venv/lib/python3/site-packages/one/core.py", "one.core"))
    two = raised(compiled(FAULTY, "/venv/lib/python3/site-packages/two/core.py", "two.core"))
    for exc in (one, two):
        assert exc.__traceback__ is not None
        exc.__traceback__ = exc.__traceback__.tb_next  # without the frame of this test

    assert mark(one) != mark(two)


def test_the_depth_of_a_recursion_does_not_change_a_fingerprint() -> None:
    assert mark(raised(lambda: deep(3))) == mark(raised(lambda: deep(30)))


def test_the_failure_path_is_cheap() -> None:
    exc = raised(lambda: deep(3))

    def once() -> float:
        before = time.perf_counter()
        for _ in range(200):
            classify(exc, DEFAULT)
            describe(exc)
            mark(exc)
        return (time.perf_counter() - before) / 200

    assert min(once() for _ in range(5)) < 0.000_3  # measured: 0.000_015


def test_a_model_named_in_a_message_does_not_leak_into_the_type() -> None:
    class Order(BaseModel):
        amount: int

    failure = classify(raised(lambda: Decoder(Order)('{"amount": "secret"}')), DEFAULT)

    assert failure.error_type == "redrive.errors.PayloadInvalid"
    assert "secret" not in failure.message
