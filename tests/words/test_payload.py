import json
import math
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from enum import Enum, StrEnum
from inspect import Parameter
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict, Field

from redrive.errors import ConfigurationError, PayloadInvalid, PayloadRefused
from redrive.payload import Decoder, Limits, check_text, decode, encode, encode_headers, parse_strict, redact

TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"))
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=20,
)


class Colour(Enum):
    RED = "red"


class Size(StrEnum):
    BIG = "big"


@dataclass
class Item:
    sku: str
    price: float = 1.0


class Order(BaseModel):
    model_config = ConfigDict(frozen=True)

    id: UUID
    paid_at: datetime
    total: Decimal = Field(alias="orderTotal")
    note: str | None = None
    weight: float | None = None


ORDER = Order(
    id=UUID("01890a5d-ac96-774b-bcce-b302099a8057"),
    paid_at=datetime(2030, 1, 1, tzinfo=UTC),
    orderTotal=Decimal("12.50"),
)


def nested(levels: int) -> Any:
    value: Any = "x"
    for _ in range(levels):
        value = [value]
    return value


def refusal(value: Any, limits: Limits | None = None) -> PayloadRefused:
    with pytest.raises(PayloadRefused) as refused:
        encode(value, limits or Limits())
    return refused.value


# --- in ---


@given(JSON)
def test_plain_values_come_back_exactly_as_they_went_in(value: Any) -> None:
    back = decode(encode(value))

    assert back == value
    assert json.dumps(back) == json.dumps(value)  # 1 and 1.0 and True are equal, yet not the same


def test_text_is_compact_and_not_escaped() -> None:
    assert encode({"name": "Zoë", "n": [1, 2]}) == '{"name":"Zoë","n":[1,2]}'


def test_a_model_comes_back_as_the_same_model() -> None:
    assert Decoder(Order)(encode(ORDER)) == ORDER


def test_common_types_are_written_in_their_usual_form() -> None:
    value = {
        "at": datetime(2030, 1, 1, tzinfo=UTC),
        "id": ORDER.id,
        "sum": Decimal("1.10"),
        "colour": Colour.RED,
        "size": Size.BIG,
        "raw": b"abc",
        "item": Item("a"),
        "order": ORDER,
        "pair": (1, 2),
    }

    assert decode(encode(value)) == {
        "at": "2030-01-01T00:00:00Z",
        "id": str(ORDER.id),
        "sum": "1.10",
        "colour": "red",
        "size": "big",
        "raw": "abc",
        "item": {"sku": "a", "price": 1.0},
        "order": json.loads(ORDER.model_dump_json(by_alias=True)),
        "pair": [1, 2],
    }


@pytest.mark.parametrize(
    ("value", "field", "says"),
    [
        ({"items": [{}, {}, {}, {"price": math.nan}]}, "payload.items[3].price", "nan"),
        ({"items": [Item("a"), Item("b", math.inf)]}, "payload.items[1].price", "inf"),
        (ORDER.model_copy(update={"weight": math.nan}), "payload.weight", "nan"),
        ({"order": ORDER.model_copy(update={"weight": -math.inf})}, "payload.order.weight", "-inf"),
        ({"a": {"b": object()}}, "payload.a.b", "object"),
        ({"a": b"\xff"}, "payload.a", "bytes"),
        ({"a": ["ok", "x\0"]}, "payload.a[1]", "NUL"),
        ([Item("x\0")], "payload[0].sku", "NUL"),
        ({"a": {"k\0": 1}}, "payload.a", "NUL"),
        ({"a": "\ud800"}, "payload.a", "surrogate"),
        ({"\udfff": 1}, "payload", "surrogate"),
        (ORDER.model_copy(update={"note": "\ud800"}), "payload", "surrogate"),
        ({"a": {1: "x"}}, "payload.a", "keys must be strings"),
        ({"a": [{None: "x"}]}, "payload.a[0]", "keys must be strings"),
        ({"a": {(1, 2): "x"}}, "payload.a", "keys must be strings"),
        ({"n": 10**5_000}, "payload.n", "digits"),
        (math.nan, "payload", "nan"),
    ],
)
def test_what_would_not_come_back_is_refused_by_its_path(value: Any, field: str, says: str) -> None:
    refused = refusal(value)

    assert refused.field.startswith(field)
    assert str(refused).startswith(field)
    assert says in str(refused)


def test_a_value_that_contains_itself_is_refused() -> None:
    value: dict[str, Any] = {"a": {}}
    value["a"]["back"] = value

    assert refusal(value).field == "payload.a.back"


def test_the_same_part_twice_is_no_cycle() -> None:
    part = {"x": 1}

    assert encode([part, part]) == '[{"x":1},{"x":1}]'


@pytest.mark.parametrize("wrap", [lambda v: v, lambda v: [v], Item], ids=["plain", "list", "dataclass"])
def test_nesting_is_limited_to_the_level(wrap: Any) -> None:
    limits = Limits(max_depth=10)
    outside = 0 if wrap(1) == 1 else 1

    assert encode(wrap(nested(10 - outside)), limits)
    refused = refusal(wrap(nested(11 - outside)), limits)

    assert refused.limit == "max_depth=10"
    assert "10 levels" in str(refused)


def test_nesting_beyond_what_python_can_walk_is_refused_too() -> None:
    assert refusal(nested(100_000)).limit == "max_depth=64"


def test_many_brackets_side_by_side_are_not_deep() -> None:
    rows = [{"at": ORDER.paid_at, "tags": []} for _ in range(500)]

    assert len(decode(encode(rows))) == 500


def test_size_is_limited_in_bytes_not_in_characters() -> None:
    limits = Limits(max_bytes=12)

    assert encode("x" * 10, limits) == '"xxxxxxxxxx"'
    assert encode("é" * 5, limits) == '"ééééé"'
    assert refusal("x" * 11, limits).limit == "max_bytes=12"
    assert refusal("é" * 6, limits).limit == "max_bytes=12"


def test_text_that_only_looks_like_an_escaped_nul_is_kept() -> None:
    assert decode(encode({"a": "\\u0000"})) == {"a": "\\u0000"}


def test_the_refusal_says_which_value_is_meant() -> None:
    with pytest.raises(PayloadRefused, match=r"^result\.x ") as refused:
        encode({"x": math.nan}, what="result")

    assert refused.value.field == "result.x"


@pytest.mark.parametrize("limits", [{"max_bytes": 0}, {"max_depth": 0}, {"max_depth": 1_000}])
def test_limits_that_cannot_work_are_refused(limits: dict[str, int]) -> None:
    with pytest.raises(ConfigurationError, match=next(iter(limits))):
        Limits(**limits)


@given(st.dictionaries(TEXT.filter(bool), TEXT, max_size=5))
def test_headers_come_back_as_they_went_in(headers: dict[str, str]) -> None:
    assert decode(encode_headers(headers)) == headers


def test_no_headers_are_an_empty_object() -> None:
    assert encode_headers(None) == encode_headers({}) == "{}"


@pytest.mark.parametrize(
    ("headers", "says"),
    [
        ({"a": 1}, "headers.a must be a string"),
        ({1: "a"}, "must be a string"),
        ({"": "a"}, "empty"),
        ({"a": "\0"}, "headers.a contains a NUL"),
        ({"a\ud800": "x"}, "surrogate"),
        ({str(n): "" for n in range(101)}, "at most 100"),
        ({"a": "x" * 16_380}, "at most 16,384"),
        ({"a": "é" * 9_000}, "at most 16,384"),
    ],
)
def test_headers_that_cannot_travel_are_refused(headers: Any, says: str) -> None:
    with pytest.raises(PayloadRefused, match=says) as refused:
        encode_headers(headers)

    assert refused.value.field.startswith("headers")


def test_short_clean_text_passes_unchanged() -> None:
    assert check_text("Zoë 😀", "actor", 5) == "Zoë 😀"
    assert check_text("", "actor", 5) == ""


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ("123456", "at most 5"),
        ("a\0", "NUL"),
        ("\udc00", "surrogate"),
        (7, "must be a string, not int"),
        (None, "str"),
    ],
)
def test_text_that_cannot_be_stored_is_refused_by_field(value: Any, says: str) -> None:
    with pytest.raises(PayloadRefused, match=says) as refused:
        check_text(value, "subject", 5)

    assert refused.value.field == "subject"


# --- out ---


@pytest.mark.req("O4")
def test_a_payload_that_does_not_fit_names_the_fields_and_hides_the_values() -> None:
    with pytest.raises(PayloadInvalid) as invalid:
        Decoder(Order)('{"id": "s3cret", "paid_at": "2030-01-01T00:00:00Z"}')

    message = str(invalid.value)
    assert message.startswith("payload does not fit Order: id: ")
    assert "orderTotal: Field required" in message
    assert "s3cret" not in message
    assert invalid.value.__cause__ is not None


def test_of_many_faults_the_first_few_are_named_and_the_rest_counted() -> None:
    with pytest.raises(PayloadInvalid, match=r"\[4\]: .*; and 15 more$"):
        Decoder(list[int])(json.dumps(["x"] * 20))
    with pytest.raises(PayloadInvalid, match=r"2,000 errors$"):
        Decoder(list[int])(json.dumps(["x"] * 2_000))


@pytest.mark.parametrize("annotation", [Any, object, None, Parameter.empty])
def test_without_a_type_a_handler_gets_plain_values(annotation: Any) -> None:
    assert Decoder(annotation)('[1,{"a":null}]') == [1, {"a": None}]


@pytest.mark.parametrize("annotation", [dict, dict[str, Any]])
def test_a_handler_that_asks_for_a_dict_gets_nothing_else(annotation: Any) -> None:
    assert Decoder(annotation)('{"a":1}') == {"a": 1}
    with pytest.raises(PayloadInvalid, match="it is a list"):
        Decoder(annotation)("[1]")


@pytest.mark.parametrize("annotation", [Any, dict, Order])
@pytest.mark.parametrize("text", ["{", "", "[" * 100_000])
def test_text_that_is_no_json_is_invalid(annotation: Any, text: str) -> None:
    with pytest.raises(PayloadInvalid):
        Decoder(annotation)(text)


def test_a_dataclass_and_bytes_from_the_store_work_too() -> None:
    assert Decoder(Item)(b'{"sku":"a","price":2}') == Item("a", 2.0)


def test_a_type_no_payload_can_have_is_refused_at_once() -> None:
    class Opaque:
        pass

    with pytest.raises(ConfigurationError, match="Opaque"):
        Decoder(Opaque)


# --- for other eyes ---


SECRET = {
    "card": {"number": "4111", "holder": "Z"},
    "number": 7,
    "Password": "a",
    "user": {"password": "b", "deep": {"PASSWORD": {"old": "c"}}},
    "items": [{"token": "d", "n": 1}, {"token": "e"}],
}


@pytest.mark.parametrize(
    ("paths", "hidden"),
    [
        (["card.number"], {"4111"}),
        (["password"], {"a", "b", "c"}),
        (["*.password"], {"b"}),
        (["items[].token"], {"d", "e"}),
        (["items.token"], {"d", "e"}),
        (["*.*.password"], {"c"}),
        (["CARD.Holder", "items"], {"Z", "d", "e"}),
        (["nothing.here"], set()),
        ([], set()),
    ],
)
def test_named_fields_are_masked_and_the_rest_is_kept(paths: list[str], hidden: set[str]) -> None:
    before = json.dumps(SECRET)

    shown = json.dumps(redact(SECRET, paths, mask="###"))

    for secret in ("4111", "a", "b", "c", "d", "e", "Z"):
        assert (f'"{secret}"' in shown) is (secret not in hidden)
    assert ("###" in shown) is bool(hidden)
    assert json.dumps(SECRET) == before


def test_masking_keeps_the_other_fields_of_the_same_name() -> None:
    shown = redact(SECRET, ["card.number"])

    assert shown["number"] == 7
    assert shown["card"] == {"number": "•••", "holder": "Z"}
    assert redact([{"a": 1}, "x"], ["a"]) == [{"a": "•••"}, "x"]


@given(JSON)
def test_masking_nothing_changes_nothing(value: Any) -> None:
    assert redact(value, ["no-such-field-anywhere"]) == value


# --- JSON that others wrote ---


@pytest.mark.req("A7")
@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("9007199254740993", 9007199254740993),
        ("-" + "9" * 4_000, -int("9" * 4_000)),
        ("0.1", 0.1),
        ("0.10000000000000001", 0.1),
        ("0.1000000000000000055511151231257827021181583404541015625", 0.1),
        ("0.1" + "0" * 60, 0.1),
        ("1e23", 1e23),
        ("5e-324", 5e-324),
        ("-0.0", -0.0),
        ("0e999999", 0.0),
        ("1.7976931348623157e308", 1.7976931348623157e308),
        ('{"a": [1, {"a": 2}]}', {"a": [1, {"a": 2}]}),
        (b'"\xc3\xa9"', "é"),
    ],
)
def test_json_from_outside_is_read_when_its_value_stays_the_same(text: str | bytes, value: Any) -> None:
    assert repr(parse_strict(text)) == repr(value)


@pytest.mark.req("A7")
@pytest.mark.parametrize(
    "text",
    [
        '{"a": 1, "a": 1}',
        '[{"b": {"a": 1, "c": 2, "\\u0061": 3}}]',
        "1e400",
        "-1e999999999999999999999",
        "1e-400",
        "4e-324",
        "9007199254740993.0",
        "123456789012345678901.5",
        "0.1234567890123456789012345678901234567890",
        "0." + "1" * 100_000,
        "9" * 5_000,
        "[" * 100_000 + "]" * 100_000,
    ],
)
def test_json_from_outside_is_refused_when_its_value_would_change(text: str) -> None:
    with pytest.raises(PayloadRefused, match="the JSON"):
        parse_strict(text)


@pytest.mark.parametrize("text", ["", "{", "{'a': 1}", "[1,]", "NaN", "[-Infinity]", '"a\nb"', b'"\xff"', "\ufeff1"])
def test_text_that_is_no_json_is_an_error_of_its_own(text: str | bytes) -> None:
    with pytest.raises((json.JSONDecodeError, UnicodeDecodeError)):
        parse_strict(text)
