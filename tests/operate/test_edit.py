"""Edits of a payload: how a change is written, what it does, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from redrive import Refused
from redrive.operate.edit import BadEdit, assignment, differences, edited, removal


@pytest.mark.parametrize(
    ("written", "after"),
    [
        ("payload.a=2", {"a": 2, "b": {"c": [1, {"d": 3}]}}),
        ("payload.a=text", {"a": "text", "b": {"c": [1, {"d": 3}]}}),
        ('payload.a="2"', {"a": "2", "b": {"c": [1, {"d": 3}]}}),
        ("payload.a=", {"a": "", "b": {"c": [1, {"d": 3}]}}),
        ("payload.a=NaN", {"a": "NaN", "b": {"c": [1, {"d": 3}]}}),
        ("payload.a=x=y", {"a": "x=y", "b": {"c": [1, {"d": 3}]}}),
        ('payload.b={"c":null}', {"a": 1, "b": {"c": None}}),
        ("payload.b.c.1.d=4", {"a": 1, "b": {"c": [1, {"d": 4}]}}),
        ("payload.new.deep=true", {"a": 1, "b": {"c": [1, {"d": 3}]}, "new": {"deep": True}}),
        ('payload."x.y"=1', {"a": 1, "b": {"c": [1, {"d": 3}]}, "x.y": 1}),
    ],
)
def test_a_field_is_set_to_json_or_to_text(written: str, after: Any) -> None:
    before = {"a": 1, "b": {"c": [1, {"d": 3}]}}

    assert edited(before, [assignment(written)]) == after
    assert before == {"a": 1, "b": {"c": [1, {"d": 3}]}}


def test_a_field_is_taken_out() -> None:
    assert edited({"a": 1, "b": [1, 2]}, [removal("payload.a"), removal("payload.b.0")]) == {"b": [2]}


@pytest.mark.parametrize(
    ("payload", "written", "said"),
    [
        ({"a": 1}, "payload.a.b=1", "payload.a is a number, which has no fields"),
        ({"a": "x"}, "payload.a.b.c=1", "payload.a is text"),
        ({"a": None}, "payload.a.b=1", "payload.a is null"),
        (7, "payload.a=1", "payload is a number"),
        ({"a": [1]}, "payload.a.1=2", "payload.a.1 is not there"),
        ({"a": []}, "payload.a.b=2", "payload.a is a list"),
    ],
)
def test_a_path_through_what_has_no_fields_is_a_clear_error(payload: Any, written: str, said: str) -> None:
    with pytest.raises(BadEdit, match=said):
        edited(payload, [assignment(written)])


@pytest.mark.parametrize("written", ["payload.x", "payload.a.x"])
def test_what_is_not_there_cannot_be_taken_out(written: str) -> None:
    with pytest.raises(BadEdit, match="there is no payload"):
        edited({"a": {}}, [removal(written)])


@pytest.mark.parametrize("field", ["id", "key", "retry_key", "idempotency_key", "correlation_id", "type", "headers.x"])
def test_identity_is_refused_with_the_reason(field: str) -> None:
    with pytest.raises(Refused, match="whether its effect has happened"):
        assignment(f"{field}=1")


@pytest.mark.parametrize("written", ["", "payload", "payload=1", "a=1", "payload.=1", 'payload."a=1', "payload.a b=1"])
def test_what_is_no_change_is_said_so(written: str) -> None:
    with pytest.raises(BadEdit):
        assignment(written)


def test_differences_name_the_fields_and_tell_true_from_1() -> None:
    found = differences({"a": 1, "b": [1, 2], "c": {"d": 1}}, {"a": True, "b": [1, 3], "c": {"e": 1}})

    assert [each.to_json() for each in found] == [
        {"field": "payload.a", "before": 1, "after": True},
        {"field": "payload.b.1", "before": 2, "after": 3},
        {"field": "payload.c.d", "before": 1},
        {"field": "payload.c.e", "after": 1},
    ]
