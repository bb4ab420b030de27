"""Masks: which names are secret, and where their values are hidden."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redrive import ConfigurationError, Redrive
from redrive.mask import HIDDEN, Mask, kept

MASK = Mask()


@pytest.mark.parametrize(
    "name",
    ["password", "Password", "user_password", "passwordHash", "card", "cardNumber", "billing-card", "CARD", "API_KEY",
     "apiKey", "x-api-key", "apikey", "access_token", "authToken", "Authorization", "IBAN", "customerIban",
     "client secret"],
)  # fmt: skip
def test_a_name_with_a_secret_word_in_it_is_secret(name: str) -> None:
    assert MASK.hides(name)


@pytest.mark.parametrize(
    "name", ["discard", "cardinal", "tokens_used", "opinion", "spin", "id", "", "key", "ü", "keyboard"]
)
def test_other_names_are_not(name: str) -> None:
    assert not MASK.hides(name)


def test_what_a_secret_field_holds_is_hidden_whole() -> None:
    payload = {"card": {"number": "4111", "brand": "visa"}, "list": [{"token": [1, 2]}, "x"], "pin": None, "n": 1}

    assert MASK.value(payload) == {"card": HIDDEN, "list": [{"token": HIDDEN}, "x"], "pin": None, "n": 1}


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("login failed: password=hunter2 user=ada", f"login failed: password={HIDDEN} user=ada"),
        ("{'password': 'hun ter', 'a': 1}", f"{{'password': {HIDDEN}, 'a': 1}}"),
        ('{"api_key":"k\\"ey","a":1}', f'{{"api_key":{HIDDEN},"a":1}}'),
        ("Authorization: Bearer abcdef123456", f"Authorization: {HIDDEN} {HIDDEN}"),
        ("sent Bearer abcdef123456 to carrier", f"sent Bearer {HIDDEN} to carrier"),
        ("GET /?token=abc&x=1", f"GET /?token={HIDDEN}&x=1"),
        ("discard=all", "discard=all"),
        ("no secret here", "no secret here"),
    ],
)
def test_a_text_is_hidden_behind_a_secret_name(text: str, shown: str) -> None:
    told = MASK.text(text)

    assert told.replace(f"{HIDDEN} {HIDDEN}", HIDDEN) == shown.replace(f"{HIDDEN} {HIDDEN}", HIDDEN)


def test_a_short_number_is_hidden_where_it_stands_alone() -> None:
    secrets = MASK.secrets({"cvc": 737, "pin": 42, "card": {"limit": 12.5}})

    told = MASK.text("cvc '737' of order 17372 after 42 attempts, 737ms, 12.5", secrets)

    assert secrets == {"737", "12.5"}  # of two digits there are too many in every text
    assert told == f"cvc '{HIDDEN}' of order 17372 after 42 attempts, 737ms, {HIDDEN}"


def test_a_secret_is_hidden_wherever_it_is_quoted() -> None:
    payload = {"card": "4111111111111111", "pin": 12, "iban": {"x": "DE00 1234"}}
    secrets = MASK.secrets(payload)

    assert MASK.text("card 4111111111111111 of DE00 1234, 12 times", secrets) == f"card {HIDDEN} of {HIDDEN}, 12 times"


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(["card", "a", "pin", "note"]), inner, max_size=4)
    ),
    max_leaves=20,
)


@given(json_values)
def test_what_an_editor_leaves_hidden_comes_back_as_it_was(value: Any) -> None:
    assert kept(MASK.value(value), value) == value


@given(json_values)
def test_masking_twice_is_masking_once(value: Any) -> None:
    assert MASK.value(MASK.value(value)) == MASK.value(value)


@pytest.mark.parametrize("names", ["card", ["", "card"], ["-"]])
def test_a_mask_that_cannot_be_meant_is_refused(names: Any) -> None:
    with pytest.raises(ConfigurationError, match="mask"):
        Redrive("sqlite:///:memory:", mask=names)


def test_nothing_is_hidden_when_nothing_is_named() -> None:
    assert Mask(()).text("password=x") == "password=x"
    assert Mask(()).value({"password": 1}) == {"password": 1}
