"""Signature: whether a message is genuine, by the scheme of its sender.

``standard`` is Standard Webhooks: id, time and body are signed, so that none can be exchanged and an old message cannot
be sent again. ``stripe`` signs time and body. ``github`` signs the body alone: whoever has seen one of its messages
could send it again under a new id. Several secrets may hold at once, while one is being exchanged for another.
"""

import base64
import binascii
import hashlib
import hmac
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from redrive import ConfigurationError
from redrive.apps.webhooks.refusal import Refusal, bad_headers, wrong_signature, wrong_time

TOLERANCE_SECONDS: Final = 300.0
_PREFIX: Final = "whsec_"
_MOST_SIGNATURES: Final = 32
_TIME: Final = re.compile(rb"[0-9]{1,12}")

Headers = Mapping[bytes, bytes]
Verifier = Callable[[Headers, bytes, float], None]
"""Raises ``Refusal`` unless these headers prove this body at this time."""


def verifier(kind: str, secrets: Sequence[str], tolerance: float = TOLERANCE_SECONDS) -> Verifier:
    """Make what checks the messages of one source."""
    return KINDS[kind]([_key(kind, each) for each in secrets], tolerance)


def check_secret(kind: str, secret: str, place: str) -> None:
    """Refuse a secret that could never prove anything."""
    try:
        usable = bool(_key(kind, secret))
    except (binascii.Error, ValueError):
        usable = False
    if not usable:
        raise ConfigurationError(f"{place}: a secret is not base64, as Standard Webhooks has it: whsec_…")


def sign(secret: str, message_id: str, timestamp: int, body: bytes) -> str:
    """Sign a message as Standard Webhooks does."""
    signed = f"{message_id}.{timestamp}.".encode() + body
    return "v1," + base64.b64encode(hmac.digest(_key("standard", secret), signed, "sha256")).decode("ascii")


def _key(kind: str, secret: str) -> bytes:
    if kind != "standard":
        return secret.encode()
    bare = secret.removeprefix(_PREFIX)
    return base64.b64decode(bare + "=" * (-len(bare) % 4), validate=True)


def _standard(keys: Sequence[bytes], tolerance: float) -> Verifier:
    def verify(headers: Headers, body: bytes, now: float) -> None:
        message_id, said_at = headers.get(b"webhook-id"), headers.get(b"webhook-timestamp")
        shown = headers.get(b"webhook-signature")
        if not message_id or not said_at or not shown:
            raise bad_headers("send webhook-id, webhook-timestamp and webhook-signature")
        _check_time(said_at, now, tolerance)
        signed = b"%b.%b.%b" % (message_id, said_at, body)
        theirs = [each[3:] for each in shown.split(b" ", _MOST_SIGNATURES)[:_MOST_SIGNATURES] if each[:3] == b"v1,"]
        ours = [base64.b64encode(hmac.digest(key, signed, hashlib.sha256)) for key in keys]
        _check(ours, theirs)

    return verify


def _github(keys: Sequence[bytes], _tolerance: float) -> Verifier:
    def verify(headers: Headers, body: bytes, _now: float) -> None:
        shown = headers.get(b"x-hub-signature-256")
        if not shown:
            raise bad_headers("send X-Hub-Signature-256: the sender needs the secret of this source")
        ours = [b"sha256=" + hmac.digest(key, body, hashlib.sha256).hex().encode() for key in keys]
        _check(ours, [shown])

    return verify


def _stripe(keys: Sequence[bytes], tolerance: float) -> Verifier:
    def verify(headers: Headers, body: bytes, now: float) -> None:
        parts = [each.partition(b"=") for each in headers.get(b"stripe-signature", b"").split(b",", _MOST_SIGNATURES)]
        said_at = next((value for name, _, value in parts if name.strip() == b"t"), b"")
        theirs = [value for name, _, value in parts if name.strip() == b"v1"]
        if not said_at or not theirs:
            raise bad_headers("send Stripe-Signature with t= and v1=")
        _check_time(said_at, now, tolerance)
        signed = b"%b.%b" % (said_at, body)
        _check([hmac.digest(key, signed, hashlib.sha256).hex().encode() for key in keys], theirs)

    return verify


def _none(_keys: Sequence[bytes], _tolerance: float) -> Verifier:
    def verify(_headers: Headers, _body: bytes, _now: float) -> None:
        """Believe everything."""

    return verify


KINDS: Final[Mapping[str, Callable[[Sequence[bytes], float], Verifier]]] = {
    "standard": _standard, "github": _github, "stripe": _stripe, "none": _none,
}  # fmt: skip


def _check(ours: Sequence[bytes], theirs: Sequence[bytes]) -> None:
    """Compare all with all, and give away by the time it takes nothing but how many there are."""
    genuine = False
    for mine in ours:
        for yours in theirs:
            genuine |= hmac.compare_digest(mine, yours)
    if not genuine:
        raise wrong_signature()


def _check_time(said: bytes, now: float, tolerance: float) -> None:
    if not _TIME.fullmatch(said):
        raise bad_headers("the timestamp is not a number of seconds since 1970")
    off = now - int(said)
    if abs(off) > tolerance:
        raise wrong_time(off, tolerance)


__all__ = ["KINDS", "TOLERANCE_SECONDS", "Headers", "Refusal", "Verifier", "check_secret", "sign", "verifier"]
