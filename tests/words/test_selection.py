from __future__ import annotations

import json
import pickle
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from redrive.errors import RedriveError, SelectionError
from redrive.event import ErrorClass, Event, Priority, Status
from redrive.selection import (
    FIELDS,
    MAX_ALTERNATIVES,
    MAX_LENGTH,
    MAX_TERMS,
    JsonLiteral,
    Pattern,
    Selection,
    Term,
    dead_letters,
    parse,
)
from redrive.store.sql import statement

NOW = datetime(2026, 11, 1, 16, 5, tzinfo=UTC)
ID = UUID("019a1111-2222-7333-8444-555555555555")
BATCH = UUID("019b1111-2222-7333-8444-555555555555")


@dataclass(frozen=True, slots=True)
class Batched(Event):
    batch_id: UUID | None = None


def event(**changes: Any) -> Event:
    values: dict[str, Any] = {
        "id": ID, "type": "order.paid", "source": "shop", "target": "billing", "subject": "order/7",
        "payload": {
            "currency": "XOF", "items": [{"price": 12}, {"price": 9.5}], "ok": True, "none": None, "n": 10, "s": "10",
            "big": 9_007_199_254_740_993, "a b": {"c.d": "x"}, "0": "zero",
        },
        "headers": {"tenant": "acme", "x-trace.id": "t1"}, "idempotency_key": "i-1", "retry_key": "r-1",
        "correlation_id": "c-1", "causation_id": "e-0", "ordering_key": "order-7", "queue": "default", "priority": 1,
        "status": Status.FAILED, "due_at": NOW - timedelta(hours=4), "attempts": 3, "lost_count": 1,
        "max_attempts": 5, "fence": 4, "session_id": None, "generation": 7, "cycle": 1,
        "first_failed_at": NOW - timedelta(hours=3), "last_error": "httpx.ConnectTimeout: it Timed Out after 5 s",
        "error_class": "timed_out", "error_type": "httpx.ConnectTimeout", "safe_to_retry": False,
        "fingerprint": "1:9f3a00112233aabb", "failure_history": (), "cancelled_by": None, "cancel_reason": None,
        "compensation": None, "steps_from": 0,
        "created_at": NOW - timedelta(hours=4), "ended_at": NOW - timedelta(hours=1), "deleted_at": None,
        "batch_id": BATCH,
    }  # fmt: skip
    return Batched(**{**values, **changes})


def refused(text: str) -> SelectionError:
    with pytest.raises(SelectionError) as caught:
        parse(text)
    return caught.value


# --- meaning ---


@pytest.mark.parametrize(
    "text",
    [
        "",
        "  \n ",
        "type:order.paid",
        "type=order.paid",
        "type:order.*",
        "type:*.paid",
        "type:o*p*d",
        "type:other,order.paid",
        "type:a,b*,*c,order.*",
        "TYPE:order.paid",
        "status:failed",
        "status:pending,failed",
        "status!=pending",
        "class:timed_out",
        "class:timed-out",
        "class:missing,timed_out",
        "-class:missing",
        "not class:missing",
        "NOT class:missing",
        "not\n class:missing",
        "class!=missing",
        "-class!=timed_out",
        "group:9f3a",
        "group:1:9f3a",
        "group:1:9f3a00112233aabb",
        "fingerprint:9f3a00112233aabb",
        "group:*aabb",
        "key:order-7",
        f"batch:{BATCH}",
        "batch:019b",
        "corr:c-1",
        f"corr:{ID}",
        "correlation_id:c-*",
        "cause:e-0",
        "target:billing",
        "queue:default",
        "source:shop",
        "subject:order/7",
        "subject:*",
        f"id:{ID}",
        f"id:{str(ID).upper()}",
        f"id:{ID.hex}",
        "id:019a",
        "id:019a*",
        "id:019a1111-2",
        "id:ffff,019a",
        "retry-key:r-1",
        "retry_key:r-*",
        "idem:i-1",
        "error-type:ConnectTimeout",
        "error-type:httpx.ConnectTimeout",
        "error-type:Connect*",
        "error-type:*Timeout",
        'text:"timed out"',
        "text:TIMED",
        "text:httpx*5",
        "text:nothing,timed",
        "timed",
        "timed out -nothing",
        '"Timed Out"',
        '-"timed  out"',
        "payload.currency:XOF",
        "payload.currency:X*",
        "payload.items[0].price>10",
        "payload.items[0].price:12",
        "payload.items[0].price:12.0",
        "payload.items[1].price<=9.5",
        "payload.items[1].price<10",
        "payload.items:*",
        "-payload.missing:*",
        "payload.none:null",
        "payload.none:*",
        "payload.ok:true",
        "-payload.ok:false",
        "payload.n:10",
        'payload.n!="10"',
        "payload.n:1e1",
        "payload.s:10",
        'payload.s:"10"',
        "payload.big:9007199254740993",
        "payload.big!=9007199254740992",
        "payload.big>9007199254740992",
        'payload."a b"."c.d":x',
        "payload.0:zero",
        "-payload[0]:*",
        "-payload.items.0:*",
        "payload.s!=10.0",
        "header.tenant:acme",
        "header.x-trace.id:t1",
        'header."tenant":a*',
        "-header.other:*",
        "age>1h",
        "age>=4h",
        "age<=4h",
        "age<5h",
        "failed<2h",
        "failed>=1h",
        "failed<=3600",
        "failed-at>=2026-11-01T15:05",
        "failed-at>2026-11-01T16:04:59.999999+01:00",
        "created>2026-11-01",
        'created<"2026-11-01 12:05:00.1"',
        "attempts:3",
        "attempts=3",
        "attempts!=4",
        "attempts>2",
        "attempts>=3",
        "attempts<4",
        "attempts<=3",
        "attempts:1,2,3",
        "cycle>=1",
        "lost>0",
        "generation:7",
        "gen>=7",
        "priority:1",
        "priority:normal",
        "priority>high",
        "safe:no",
        "safe:false",
        "-safe:yes",
        "discarded:no",
        "-discarded:yes",
        "discarded:yes,no",
    ],
)
def test_a_term_finds_the_event_that_it_describes(text: str) -> None:
    selection = parse(text)

    assert selection.matches(event(), NOW)
    assert parse(selection.text) == selection


@pytest.mark.parametrize(
    "text",
    [
        "type:order",
        "type:Order.paid",
        "type:order.?aid",
        'type:"order.*"',
        r"type:order.\*",
        "type:order.paid,x type:y",
        "-type:order.*",
        "status:pending",
        "class:missing",
        "group:aabb",
        "group:2:9f3a",
        "batch:019a",
        "corr:c",
        "error-type:Timeout",
        "error-type:ttpx.ConnectTimeout",
        "text:nothing",
        '"timed  out"',
        "payload.currency:xof",
        "payload.currency>10",
        "payload.items[0].price>12",
        "payload.items[2].price>0",
        "payload.items.price>0",
        "payload.currency.x:*",
        'payload.n:"10"',
        "payload.s>1",
        "payload.s:10.0",
        "payload.ok:1",
        "payload.ok>0",
        "payload.none:0",
        "payload.missing:null",
        "payload.items:12",
        "payload:XOF",
        "header.Tenant:acme",
        "header.tenant:*x*",
        "age<1h",
        "age>4h",
        "failed>1h",
        "failed-at<2026-11-01T15:05Z",
        "created>=2026-11-01T12:06",
        "due<10m",
        "due-at<2027-01-01",
        "attempts:1,2",
        "safe:yes",
        "discarded:yes",
    ],
)
def test_a_term_leaves_out_the_event_that_it_does_not_describe(text: str) -> None:
    selection = parse(text)

    assert not selection.matches(event(), NOW)
    assert parse(selection.text) == selection


def test_what_an_event_does_not_have_fits_no_term_and_every_negation() -> None:
    bare = event(
        subject=None, retry_key=None, correlation_id=None, causation_id=None, ordering_key=None, last_error=None,
        error_class=None, error_type=None, safe_to_retry=None, fingerprint=None, ended_at=None, payload=None,
        headers={}, batch_id=None, status=Status.PENDING,
    )  # fmt: skip

    for term in (
        "subject:*", "retry-key:*", "corr:*", "cause:*", "key:*", "text:*", "class:missing", "error-type:*",
        "safe:yes,no", "group:*", "failed>0s", "failed-at>2000-01-01", "payload.a:*", "payload[0]:*", "header.a:*",
        "batch:0", 'subject:""', "payload.a>0",
    ):  # fmt: skip
        assert not parse(term).matches(bare, NOW), term
        assert parse(f"-{term}").matches(bare, NOW), term
    assert parse("payload:null payload:*").matches(bare, NOW)


def test_due_counts_from_now_and_only_while_the_event_waits() -> None:
    soon = event(status=Status.PENDING, due_at=NOW + timedelta(minutes=5))
    overdue = event(status=Status.PENDING, due_at=NOW - timedelta(minutes=5))

    for text in ("due<10m", "due<=5m", "due>0", "due>=4m59s", "due-at<2026-11-01T16:11", "due>-1h"):
        assert parse(text).matches(soon, NOW), text
    for text in ("due<10m", "due<0s", "due<-4m", "due>-6m", "due<=-5m"):
        assert parse(text).matches(overdue, NOW), text
    for text in ("due<5m", "due<0", "due>10m"):
        assert not parse(text).matches(soon, NOW), text
    assert not parse("due<10m").matches(event(due_at=NOW + timedelta(minutes=5)), NOW)


def test_quotes_and_escapes_make_every_text_sayable() -> None:
    for subject in (
        'say "hi"',
        "a,b",
        "a*b",
        r"C:\temp",
        "line\nnext\ttab\r",
        "\x1b[31m",
        "\u202eabc",
        "ünï😀",
        "-x",
        ":",
    ):
        written = json.dumps(subject, ensure_ascii=False).replace("\\u001b", "\x1b")
        selection = parse(f"subject:{written}")

        assert selection == Selection((Term("subject", ":", (Pattern((subject,)),)),))
        assert selection.matches(event(subject=subject), NOW)
        assert parse(selection.text) == selection
        assert selection.text.isprintable()
    assert parse(r"subject:a\ b\,c\*\"\\") == parse(r'subject:"a b,c*\"\\"')
    assert parse('subject:"order 7"*').matches(event(subject="order 7/x"), NOW)
    assert parse(r"subject:\u00e9") == parse("subject:é")


def test_a_name_of_a_column_is_as_good_as_the_name_of_its_field() -> None:
    for long, short in (
        ("gen:7", "generation:7"), ("error_class:missing", "class:missing"), ("idempotency_key:x", "idem:x"),
        ("ordering_key:x", "key:x"), ("safe_to_retry:yes", "safe:yes"), ("lost_count>1", "lost>1"),
        ("created_at>2026-11-01", "created>2026-11-01"), ("headers.a:b", "header.a:b"), ("last-error:x", "x"),
    ):  # fmt: skip
        assert parse(long) == parse(short)
        assert parse(long).text == parse(parse(short).text).text


# --- dead letters ---


def test_dead_letters_are_meant_unless_something_else_is_said() -> None:
    assert dead_letters(parse("type:a")).text == "status:failed discarded:no type:a"
    assert dead_letters(parse("")).text == "status:failed discarded:no"
    assert dead_letters(parse("status:pending")).text == "discarded:no status:pending"
    assert dead_letters(parse("-status:pending")).text == "status:failed discarded:no -status:pending"
    assert dead_letters(parse("discarded:yes")).text == "status:failed discarded:yes"
    assert dead_letters(parse("-discarded:no")).text == "status:failed discarded:yes"
    both = dead_letters(parse("type:a"))
    assert dead_letters(both) == both


def test_dead_letters_need_room_for_their_own_terms() -> None:
    with pytest.raises(SelectionError, match="no room left for status:failed and discarded:no"):
        dead_letters(parse("a " * MAX_TERMS))
    with pytest.raises(SelectionError, match="no room left"):
        dead_letters(parse("type:" + "x" * 4_090))


# --- mistakes ---


@pytest.mark.parametrize(
    ("text", "position", "reason"),
    [
        ("tpye:order", 0, 'there is no field "tpye": did you mean type?'),
        ("status:failed zzz:red", 14, "there are type, status, class"),
        ("retrykey:x", 0, "did you mean retry-key"),
        ("http://x", 0, "To search for text, quote it"),
        ("(class:a)", 0, "did you mean class"),
        ("type>x", 4, "type takes : = != here"),
        ("status>=failed", 6, "status takes : = != here"),
        ("age:1h", 3, "age takes > >= < <= here"),
        ("created!=2026-11-01", 7, "created takes > >= < <= here"),
        ("header.a>1", 8, "header takes : = != here"),
        ('text:"timed out', 5, "this quote has no end"),
        ('a "timed out', 2, "this quote has no end"),
        ('payload."x:1', 8, "this quote has no end"),
        ("a type:", 7, "a value is missing here"),
        ("type: order", 5, "a value is missing here: no space before it"),
        ("type:a,,b", 7, "a value is missing here"),
        ("type:a, b", 7, "a value is missing here"),
        ("a, b", 2, "a value is missing here"),
        ('text:""', 5, "this text is empty"),
        ('""', 0, "this text is empty"),
        ('group:""', 6, "a group cannot be empty"),
        ('attempts:""', 9, '"" is no whole number'),
        ("attempts>=three", 10, '"three" is no whole number'),
        ("attempts>2.5", 9, "is no whole number"),
        ("attempts>٣", 9, "is no whole number"),
        ("attempts>9223372036854775808", 9, "is no whole number"),
        ("attempts>1*", 9, "there are no wildcards here"),
        ("attempts>1,2", 11, "> takes one value"),
        ("priority:9", 9, r"9 cannot be: it is 0 \(high\), 1 \(normal\)"),
        ("age>soon", 4, "is no duration: write a number of seconds"),
        ("age>-1h", 4, "is no duration"),
        ("age>101w53w", 4, "is no duration"),
        ("due<--1h", 4, "is no duration"),
        ("created>yesterday", 8, "is no date: write 2026-11-01 or"),
        ("created>2026-02-30", 8, "is no date"),
        ("created>2026-11-01Z", 8, "is no date"),
        ("created>20261101", 8, "is no date"),
        ("created>1969-12-31", 8, "is no date"),
        ("created>9999-12-31T23:59-14:00", 8, "is no date"),
        ("created>0001-01-01T00:00+14:00", 8, "is no date"),
        ("safe:maybe", 5, "is neither yes nor no"),
        ("status:fail", 7, '"fail" is no status: did you mean failed'),
        ("class:misssing", 6, '"misssing" is no error class: did you mean missing'),
        ("class:poison", 6, "there are dependency_unavailable"),
        ("id:xyz", 3, "this is no id"),
        ("id:*", 3, "this is no id"),
        ("id:019a*b", 3, "this is no id"),
        ("id:" + "0" * 33, 3, "this is no id"),
        ("payload.x>abc", 10, "> compares numbers"),
        ('payload.x>"10"', 10, "> compares numbers"),
        ("payload.x>1e999", 10, "> compares numbers"),
        ("payload..x:1", 7, "a path goes on like .name"),
        ("payload.:1", 7, "a path goes on like .name"),
        ("payload.a[-1]:1", 9, "a path goes on like .name"),
        ("payload.a[x]:1", 9, "a path goes on like .name"),
        ('payload."":1', 8, "a name is not empty"),
        ('payload."a\\"b":1', 8, "a name is not empty and holds no quotes"),
        ("payload.a!b:1", 9, "a path goes on like .name"),
        ("payload" + ".a" * 65 + ":1", 135, "a path has at most 64 steps"),
        ("payloads:1", 0, "did you mean payload"),
        ("header:x", 0, "say which header: header.tenant:acme"),
        ("header.:x", 7, "a name is not empty"),
        ("--a", 0, "turned round twice"),
        ("not not a", 0, "turned round twice"),
        ("not -a", 0, "turned round twice"),
        ("-", 0, "say what shall not hold"),
        ("a not", 2, "say what shall not hold"),
        ("- a", 0, "say what shall not hold"),
        ("age > 1h", 4, "a field must stand right before this"),
        ("type:a or type:b", 7, "alternatives are written type:a,b"),
        ("type:a AND type:b", 7, "all terms must hold anyway"),
        ("( a )", 0, "there are no brackets"),
        (r"type:a\qb", 6, "a backslash stands before"),
        (r"type:\u00g0", 5, "a backslash stands before"),
        (r"type:a\u0000", 6, "a backslash stands before"),
        (r"type:a\ud800", 6, "a backslash stands before"),
        ("type:a\\", 6, "nothing follows this backslash"),
        ("type:a\0b", 6, "no database holds this character"),
        ("type:\ud800", 5, "no database holds this character"),
        ("type:" + "*a" * 11, 5, "at most 10 wildcards"),
    ],
)
def test_a_mistake_is_pointed_at(text: str, position: int, reason: str) -> None:
    error = refused(text)

    assert error.position == position, str(error)
    assert error.text == text
    with pytest.raises(SelectionError, match=reason):
        parse(text)


def test_the_message_shows_the_place_with_carets() -> None:
    assert str(refused("class:missing tpye:order.*")) == (
        'there is no field "tpye": did you mean type? To search for text, quote it\n'
        "  class:missing tpye:order.*\n"
        "                ^^^^"
    )
    far = str(refused("type:" + "x" * 200 + " age>soon " + "y" * 200)).splitlines()
    assert far[1].startswith("  … xxx")
    assert far[1].endswith("yyy …")
    assert far[1][far[2].index("^") :].startswith("soon")
    wide = str(refused("日本 tpye:x\ttype:")).splitlines()
    assert wide[1:] == ["  日本 tpye:x·type:", "       ^^^^"]


def test_the_error_is_a_value_error_of_ours_and_survives_pickling() -> None:
    error = refused("a age>soon")

    copy = pickle.loads(pickle.dumps(error))

    assert isinstance(error, RedriveError)
    assert isinstance(error, ValueError)
    assert (str(copy), copy.position, copy.text, copy.reason) == (str(error), 6, "a age>soon", error.reason)
    assert str(SelectionError("why")) == "why"


def test_a_selection_is_bounded() -> None:
    assert len(parse("a " * MAX_TERMS).terms) == MAX_TERMS
    assert len(parse("type:" + ",".join("x" * MAX_ALTERNATIVES)).terms[0].values) == MAX_ALTERNATIVES
    assert len(parse("type:" + "x" * (MAX_LENGTH - 5)).text) == MAX_LENGTH
    for text, reason in (
        ("x" * (MAX_LENGTH + 1), "at most 4,096 characters, this one has 4,097"),
        ("a " * (MAX_TERMS + 1), "at most 50 terms"),
        ("type:" + ",".join("x" * (MAX_ALTERNATIVES + 1)), "at most 100 values"),
        ("type:" + ",".join("x" * 60) + " queue:" + ",".join("x" * 41), "at most 100 values"),
        ('"' + "\x01" * 1_000 + '"', "written out in full"),
    ):
        with pytest.raises(SelectionError, match=reason):
            parse(text)


# --- whatever comes ---


def understood(text: str) -> tuple[Selection | None, SelectionError | None]:
    try:
        return parse(text), None
    except SelectionError as error:
        return None, error


def fastest(job: Callable[[], object]) -> float:
    """Time a job on a machine that may be busy: one try in five must do."""
    spent = []
    for _ in range(5):
        start = time.perf_counter()
        job()
        spent.append(time.perf_counter() - start)
        if spent[-1] < 0.005:
            break
    return min(spent)


_WORDS = st.sampled_from(
    (
        *FIELDS, "payload.a", "payload[0]", 'payload."a b"', "header.x", "gen", "and", "or", "not", "-", '"', "\\", "*",
        ",", ":", "=", "!=", ">", ">=", "<", "<=", " ", "\n", "1h", "3", "2026-11-01", "yes", "failed", "019a", "x",
        "(", "\0", "\\u00e9", "\\n", "null", "1e5", "-1", "é", "😀", "[", "]", ".", "!",
    )
)  # fmt: skip


@settings(max_examples=1_500)
@given(st.one_of(st.text(max_size=80), st.lists(_WORDS, max_size=30).map("".join)))
@example("a:" * 2_048)
@example('"' * 4_096)
@example("a," * 2_048)
@example("payload" + ".a" * 2_000 + ":1")
@example("\\" * 4_095)
@example("payload.x:1e" + "9" * 4_000)
@example("age>" + "9" * 4_000)
@example("x" * 4_095 + ":")
def test_any_text_is_understood_or_refused_quickly(text: str) -> None:
    selection, error = understood(text)

    if error is not None:
        assert 0 <= error.position <= len(text)
        assert error.reason in str(error)
    assert fastest(lambda: understood(text)) < 0.1  # what grows with the square would take seconds
    if selection is not None:
        assert parse(selection.text) == selection
        assert selection.sentence(NOW, 3)
        assert selection.matches(event(), NOW) in (True, False)
        for dialect in ("sqlite", "postgres"):
            clauses, values = selection.where(dialect, NOW)
            assert set(statement("x", " ".join(clauses)).names) == set(values)


_TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=12)
_PART = _TEXT.filter(bool)
_PATTERN = st.one_of(
    _PART.map(lambda text: Pattern((text,))),
    st.tuples(_TEXT, st.lists(_PART, max_size=3), _TEXT).map(lambda each: Pattern((each[0], *each[1], each[2]))),
)
_INSTANTS = st.datetimes(datetime(1970, 1, 1), datetime(2200, 1, 1), timezones=st.just(UTC))  # noqa: DTZ001
_SPANS = st.timedeltas(timedelta(0), timedelta(days=36_525))
_NUMBERS = st.integers(-(2**63) + 1, 2**63 - 1)
_LITERAL = st.one_of(
    _NUMBERS.map(lambda number: JsonLiteral(str(number))),
    st.floats(-1e99, 1e99).map(lambda number: JsonLiteral(repr(number))).filter(lambda each: "inf" not in each.text),
)
_NAMES = st.text(st.characters(exclude_categories=["Cs", "Cc"], exclude_characters='"\\'), min_size=1, max_size=8)
_PATHS = st.lists(st.one_of(_NAMES, st.integers(0, 999_999)), max_size=4).map(tuple)
_EQUAL = ("type", "target", "queue", "source", "subject", "key", "retry-key", "idem", "corr", "cause", "group", "text")


def _terms(fields: tuple[str, ...], values: st.SearchStrategy[Any], ops: tuple[str, ...] = (":",)) -> Any:
    def build(field: str, op: str, some: list[Any], negated: bool) -> Term:
        return Term(field, op, tuple(some if op == ":" else some[:1]), negated)

    some = st.lists(values, min_size=1, max_size=3)
    return st.builds(build, st.sampled_from(fields), st.sampled_from(ops), some, st.booleans())


_ORDERED = (">", ">=", "<", "<=")
TERMS = st.one_of(
    _terms((*_EQUAL, "error-type"), _PATTERN),
    _terms(("status",), st.sampled_from([each.value for each in Status])),
    _terms(("class",), st.sampled_from([each.value for each in ErrorClass])),
    _terms(("id", "batch"), st.text("0123456789abcdef", min_size=1, max_size=32)),
    _terms(("attempts", "cycle", "lost", "generation"), _NUMBERS, (":", *_ORDERED)),
    _terms(("priority",), st.sampled_from([each.value for each in Priority]), (":", *_ORDERED)),
    _terms(("age", "failed", "due"), _SPANS, _ORDERED),
    _terms(("due",), _SPANS.map(lambda span: -span), _ORDERED),
    _terms(("created", "failed-at", "due-at"), _INSTANTS, _ORDERED),
    _terms(("safe",), st.booleans()),
    st.booleans().map(lambda value: Term("discarded", ":", (value,))),
    st.builds(lambda term, path: Term("payload", term.op, term.values, term.negated, path),
              st.one_of(_terms(("payload",), st.one_of(_PATTERN, _LITERAL)),
                        _terms(("payload",), _LITERAL, _ORDERED)), _PATHS),
    st.builds(lambda term, name: Term("header", ":", term.values, term.negated, (name,)),
              _terms(("header",), _PATTERN), _NAMES),
)  # fmt: skip


@settings(max_examples=600)
@given(st.lists(TERMS, max_size=8).map(lambda terms: Selection(tuple(terms))))
def test_a_selection_says_itself_back(selection: Selection) -> None:
    text = selection.text

    assert parse(text) == selection
    assert parse(text).text == text
    assert parse(f"  {text}\n") == selection
    assert "\n" not in text


@settings(max_examples=300)
@given(st.lists(TERMS, max_size=4), TERMS)
def test_a_selection_can_only_shrink_with_a_term_and_its_negation_is_the_rest(terms: list[Term], one: Term) -> None:
    selection = Selection(tuple(terms))
    turned = Term(one.field, one.op, one.values, not one.negated, one.path)

    alone = Selection((one,)).matches(event(), NOW)

    assert Selection((turned,)).matches(event(), NOW) is not alone
    assert Selection((*terms, one)).matches(event(), NOW) is (alone and selection.matches(event(), NOW))


# --- conditions ---


def test_conditions_are_in_the_style_of_the_stores() -> None:
    clauses, values = dead_letters(parse("type:order.paid attempts>=3 age>1h")).where("sqlite", NOW)

    assert clauses == [
        "and status = 'failed'",
        "and deleted_at is null",
        "and type = :sel_a",
        "and attempts >= :sel_b",
        "and created_at < :sel_c",
    ]
    assert values == {"sel_a": "order.paid", "sel_b": 3, "sel_c": 1_793_545_500_000_000}


def test_no_value_gets_into_the_text_of_a_condition() -> None:
    hostile = "x'; drop table outbox -- :now {columns} %s $1 \" \\"
    quoted = json.dumps(hostile)
    names = (*_EQUAL, "error-type", 'payload."k\'ey"', "header.h'h", "payload.a")
    text = " ".join((*(f"{name}:{quoted}" for name in names), "payload.a>1.5", "payload.a:1.5,2,null,true"))

    for dialect in ("sqlite", "postgres"):
        clauses, values = parse(text).where(dialect, NOW)
        written = " ".join(clauses)

        assert "drop" not in written
        assert "k'ey" not in written
        assert "{" not in written  # the stores fill in the columns by str.format
        assert "--" not in written
        assert set(statement("x", written).names) == set(values)


def test_a_hundred_values_have_a_hundred_names() -> None:
    clauses, values = parse("type:" + ",".join(f"t{n}" for n in range(100))).where("postgres", NOW)

    assert len(values) == 100
    assert list(values.values()) == [f"t{n}" for n in range(100)]
    assert all(name.replace("_", "").isalpha() and name.islower() for name in values)
    assert len(statement("x", clauses[0]).names) == 100


# --- sentences ---


@pytest.mark.parametrize(
    ("text", "count", "sentence"),
    [
        ("", None, "all events"),
        ("", 0, "no events"),
        ("", 1, "1 event"),
        ("", 12_345, "12,345 events"),
        (
            "status:failed type:order.paid error-type:GatewayTimeout failed-at<2026-11-01T14:05",
            312,
            "312 dead letters of order.paid that failed with GatewayTimeout before 14:05",
        ),
        ("status:failed", 1, "1 dead letter"),
        ("status:failed discarded:no", None, "dead letters"),
        ("status:failed discarded:yes", 2, "2 discarded dead letters"),
        ("discarded:no", None, "events not discarded"),
        ("status:in_flight,blocked", None, "in-flight or blocked events"),
        ("status:pending,failed", 1, "1 pending event or dead letter"),
        ("-status:failed", None, "events, but not dead letters"),
        ("type:a,b,c*", None, "events of a, b or c*"),
        ("type:a,b,c,d,e,f,g,h", None, "events of a, b, c, d, e or 3 others"),
        ('type:"a b" target:t source:"" queue:q group:9f3a', None,
         'events of "a b" for target t from "" in queue q in group 9f3a'),
        ("class:missing,invalid", None, "events that failed as missing or invalid"),
        ("timed out", None, 'events that failed saying "timed" and saying "out"'),
        ("text:*", None, "events that failed with any error text"),
        ("failed<2h", None, "events that failed less than 2h ago (after 14:05)"),
        ("failed>=1d", None, "events that failed at least 1d ago (at or before 2026-10-31 16:05)"),
        ("-failed<2h -class:missing", None, "events, but not failed less than 2h ago (after 14:05), nor as missing"),
        ("age>1h", None, "events older than 1h (before 15:05)"),
        ("age>=1h", None, "events at least 1h old (at or before 15:05)"),
        ("age<1h", None, "events younger than 1h (after 15:05)"),
        ("age<=1h", None, "events at most 1h old (at or after 15:05)"),
        ("created>=2026-11-01", None, "events created at or after 00:00"),
        ("created>2026-10-30T12:00:30", None, "events created after 2026-10-30 12:00:30"),
        ("due<10m", None, "events due in less than 10m (before 16:15)"),
        ("due<0", None, "events overdue (before 16:05)"),
        ("due<-10m", None, "events due more than 10m ago (before 15:55)"),
        ("due>-10m", None, "events due less than 10m ago or later (after 15:55)"),
        ("due-at<2026-11-02", None, "events due before 2026-11-02 00:00"),
        ("subject:order/7 key:k", None, "events about order/7, with ordering key k"),
        ("subject:*", None, "events with any subject"),
        ("-subject:*", None, "events, but not with any subject"),
        ("retry-key:r idem:i", None, "events with retry key r, with idempotency key i"),
        ("corr:c cause:e", None, "events correlated to c, caused by e"),
        (f"id:{ID}", None, f"events with id {ID}"),
        ("id:019a batch:019b", None, "events with id 019a…, in batch 019b…"),
        ("payload.currency:XOF", None, "events with payload.currency XOF"),
        ("payload.items[0].price>10", None, "events with payload.items[0].price above 10"),
        ("payload.a>=1 payload.b<=2", None, "events with payload.a of at least 1 and with payload.b of at most 2"),
        ("payload.a:*", None, "events with any payload.a"),
        ("header.tenant:acme", None, "events with header tenant acme"),
        ("attempts>=3 lost>0", None, "events with at least 3 attempts, with more than 0 lost attempts"),
        ("attempts:1", 1, "1 event with 1 attempt"),
        ("attempts<3 attempts<=5", None, "events with fewer than 3 attempts and with at most 5 attempts"),
        ("cycle>=1 generation:7", None, "events of cycle 1 or later, of generation 7"),
        ("cycle>1 gen<7", None, "events of a cycle after 1, of a generation before 7"),
        ("priority:1,2", None, "events with normal or low priority"),
        ("priority>1", None, "events with a priority below normal"),
        ("safe:no", None, "events unsafe to retry"),
        ("-safe:yes", None, "events, but not safe to retry"),
        ('subject:"\\u001b[31m"', None, 'events about "\\u001b[31m"'),
        ("subject:" + "x" * 200, None, "events about " + "x" * 80 + "…"),
    ],
)  # fmt: skip
def test_a_selection_reads_as_a_sentence(text: str, count: int | None, sentence: str) -> None:
    assert parse(text).sentence(NOW, count) == sentence


@settings(max_examples=300)
@given(st.lists(TERMS, max_size=5))
def test_a_sentence_is_one_line_of_printable_text(terms: list[Term]) -> None:
    assert "\n" not in Selection(tuple(terms)).sentence(NOW, 7)
