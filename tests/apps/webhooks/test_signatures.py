"""Whether a message is genuine, by the scheme of its sender; Standard Webhooks against the official package."""

from __future__ import annotations

import base64
import hashlib
import hmac
import time
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st
from standardwebhooks.webhooks import Webhook, WebhookVerificationError

from redrive import ConfigurationError
from redrive.apps.webhooks.refusal import Refusal
from redrive.apps.webhooks.signature import check_secret, sign, verifier

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
OTHER = "whsec_" + base64.b64encode(b"another one of many bytes").decode()
BODY = b'{"test": 2432232314}'


def headers(message_id: str, at: int, signature: str) -> dict[bytes, bytes]:
    return {
        b"webhook-id": message_id.encode(),
        b"webhook-timestamp": str(at).encode(),
        b"webhook-signature": signature.encode(),
    }


def reason_of(kind: str, shown: dict[bytes, bytes], body: bytes = BODY, now: float = 1_000.0) -> str | None:
    """Say why a message is refused; nothing if it is not."""
    try:
        verifier(kind, [SECRET])(shown, body, now)
    except Refusal as refusal:
        return refusal.reason
    return None


# --- Standard Webhooks ---


@pytest.mark.req("H6")
def test_the_example_of_the_specification_is_genuine() -> None:
    signature = "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="
    shown = headers("msg_p5jXN8AQM9LWM0D4loKWxJek", 1_614_265_330, signature)

    assert sign(SECRET, "msg_p5jXN8AQM9LWM0D4loKWxJek", 1_614_265_330, BODY) == signature
    assert reason_of("standard", shown, now=1_614_265_330) is None


@pytest.mark.req("H6")
@given(text=st.text(), message_id=st.from_regex(r"[A-Za-z0-9_.-]{1,40}", fullmatch=True))
def test_what_the_official_package_signs_is_genuine_here_and_the_other_way_round(text: str, message_id: str) -> None:
    try:
        body = text.encode()
    except UnicodeEncodeError:  # a lone surrogate cannot be sent
        return
    at = datetime.now(UTC).replace(microsecond=0)
    official = Webhook(SECRET)

    theirs = official.sign(message_id, at, text)
    ours = sign(SECRET, message_id, int(at.timestamp()), body)

    stamp = int(at.timestamp())
    assert reason_of("standard", headers(message_id, stamp, theirs), body, at.timestamp()) is None
    plain = {name.decode(): value.decode() for name, value in headers(message_id, stamp, ours).items()}
    official.verify(body, plain, json_parse=False)
    assert ours == theirs


@pytest.mark.req("H6")
@pytest.mark.parametrize("change", ["body", "id", "time", "secret"])
def test_whatever_is_exchanged_makes_a_message_false_here_and_there(change: str) -> None:
    at = int(time.time())
    signature = sign(OTHER if change == "secret" else SECRET, "msg_1", at, BODY)
    shown = headers("msg_2" if change == "id" else "msg_1", at + 1 if change == "time" else at, signature)
    body = BODY + b" " if change == "body" else BODY

    assert reason_of("standard", shown, body, at) == "signature"
    with pytest.raises(WebhookVerificationError):
        Webhook(SECRET).verify(body, {name.decode(): value.decode() for name, value in shown.items()})


@pytest.mark.req("H6")
@pytest.mark.parametrize(("off", "reason"), [(299, None), (301, "timestamp"), (-299, None), (-301, "timestamp")])
def test_a_genuine_message_is_refused_five_minutes_before_and_after_its_time(off: int, reason: str | None) -> None:
    shown = headers("msg_1", 10_000, sign(SECRET, "msg_1", 10_000, BODY))

    assert reason_of("standard", shown, now=10_000 + off) == reason


@pytest.mark.req("H6")
def test_several_secrets_hold_while_one_is_exchanged_for_another() -> None:
    check = verifier("standard", [OTHER, SECRET])
    old, new = sign(SECRET, "msg_1", 1_000, BODY), sign(OTHER, "msg_1", 1_000, BODY)
    stranger = sign("whsec_" + base64.b64encode(b"nobody knows this").decode(), "msg_1", 1_000, BODY)

    for shown in (old, new, f"{stranger} {new}", f"v1a,asymmetric {old}"):
        check(headers("msg_1", 1_000, shown), BODY, 1_000)
    with pytest.raises(Refusal, match="no signature fits"):
        check(headers("msg_1", 1_000, stranger), BODY, 1_000)


@pytest.mark.parametrize("missing", [b"webhook-id", b"webhook-timestamp", b"webhook-signature"])
def test_each_header_is_needed(missing: bytes) -> None:
    shown = headers("msg_1", 1_000, sign(SECRET, "msg_1", 1_000, BODY))
    del shown[missing]

    assert reason_of("standard", shown) == "headers"


@pytest.mark.parametrize("at", [b"", b"now", b"1e3", b"-5", b"1" * 400, b"\xff", b"1000.5", b"\xd9\xa1"])
def test_a_time_that_is_none_is_refused(at: bytes) -> None:
    shown = headers("msg_1", 1_000, "v1,AAAA") | {b"webhook-timestamp": at}

    assert reason_of("standard", shown) == "headers"


@pytest.mark.parametrize("shown", ["", "v1", "v1,", "v2,abc", "v1,=", "v1,é", " " * 5_000, "v1,a " * 5_000])
def test_a_signature_that_is_none_is_refused(shown: str) -> None:
    given = headers("msg_1", 1_000, "") | {b"webhook-signature": shown.encode("latin-1")}

    assert reason_of("standard", given) in {"signature", "headers"}


# --- the others ---


@pytest.mark.req("H6")
def test_the_example_of_github_is_genuine() -> None:
    check = verifier("github", ["It's a Secret to Everybody"])
    shown = {b"x-hub-signature-256": b"sha256=757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17"}

    check(shown, b"Hello, World!", 0)
    with pytest.raises(Refusal, match="no signature fits"):
        check(shown, b"Hello, World?", 0)
    with pytest.raises(Refusal, match="X-Hub-Signature-256"):
        check({}, b"Hello, World!", 0)


@pytest.mark.req("H6")
def test_stripe_signs_time_and_body() -> None:
    key = "whsec_not_base64"
    digest = hmac.new(key.encode(), b"1000." + BODY, hashlib.sha256).hexdigest()
    check = verifier("stripe", [key])

    check({b"stripe-signature": f"t=1000,v1={'0' * 64},v1={digest},v0=old".encode()}, BODY, 1_000)
    for shown, why in (
        (f"t=1000,v1={digest}x", "no signature fits"),
        (f"t=1001,v1={digest}", "no signature fits"),
        (f"v1={digest}", "t= and v1="),
        ("t=1000", "t= and v1="),
    ):
        with pytest.raises(Refusal, match=why):
            check({b"stripe-signature": shown.encode()}, BODY, 1_000)
    with pytest.raises(Refusal, match="301 s old"):
        check({b"stripe-signature": f"t=1000,v1={digest}".encode()}, BODY, 1_301)


@pytest.mark.parametrize("secret", ["whsec_", "", "whsec_§§§", "whsec_a"])
def test_a_secret_that_could_prove_nothing_is_refused(secret: str) -> None:
    with pytest.raises(ConfigurationError, match="whsec_"):
        check_secret("standard", secret, "sources.shop")
