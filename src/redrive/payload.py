"""Payload: what an event carries, as JSON text on the way in and as the handler's type on the way out.

What would not come back exactly as it went in is refused at publish (``PayloadRefused``, with the path of
the culprit): later it would be a dead letter, far from the code that could mend it. What does not fit the
handler's type is ``PayloadInvalid``, which no retry can mend.

The happy path takes no walk over text or numbers: the encoder in C does, and only an oddity is looked for.
"""

import inspect
import json
import math
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar, cast

from pydantic_core import ValidationError, to_json, to_jsonable_python

from redrive import check
from redrive.check import has_controls
from redrive.errors import ConfigurationError, PayloadInvalid, PayloadRefused

if TYPE_CHECKING:
    import pydantic

__all__ = [
    "DEFAULT_LIMITS",
    "Decoder",
    "Garbled",
    "Limits",
    "check_text",
    "check_whole",
    "decode",
    "decode_headers",
    "encode",
    "encode_headers",
    "parse_strict",
    "redact",
]

T = TypeVar("T")

_DEEPEST = 190  # at 200 levels pydantic's JSON parser gives up
_MOST_BITS = 14_000  # some 4,200 digits; Python reads back 4,300


@dataclass(frozen=True, slots=True)
class Limits:
    """How large a payload may be."""

    max_bytes: int = 1_048_576
    max_depth: int = 64

    def __post_init__(self) -> None:
        check.whole(self.max_bytes, "max_bytes")
        check.whole(self.max_depth, "max_depth", 1, _DEEPEST)


DEFAULT_LIMITS: Final = Limits()
_WIDEST: Final = Limits(max_bytes=2**31, max_depth=_DEEPEST)
_ODD_ESCAPE: Final = re.compile(r"\\u(?:0000|[dD][89a-fA-F])")
_SCALARS = frozenset({str, int, float, bool, type(None)})
_CONTAINERS = frozenset({dict, list, tuple})
_LONG = 4_000
_LONG_NUMBER = re.compile(rf"\d{{{_LONG}}}")
# Models, dataclasses, datetime, UUID, Decimal, Enum, bytes: by their pydantic form. Not by model_dump_json,
# which turns NaN into null without a word.
_encoder = json.JSONEncoder(
    ensure_ascii=False, allow_nan=False, separators=(",", ":"), default=to_jsonable_python
).encode
_sorting_encoder = json.JSONEncoder(
    ensure_ascii=False, allow_nan=False, separators=(",", ":"), default=to_jsonable_python, sort_keys=True
).encode


def _encoder_for(*, opaque: bool, in_order: bool) -> Callable[[Any], str]:
    if in_order:
        return _sorting_encoder
    return _encoder if opaque else _plain_encoder


def _plain_encoder(value: Any) -> str:
    """Write what is plain, in a quarter of the time; the other knows better what cannot be read again."""
    text = to_json(value, inf_nan_mode="constants").decode()
    if "NaN" in text or "Infinity" in text or (len(text) > _LONG and _LONG_NUMBER.search(text)):
        return _encoder(value)
    return text


def encode(value: Any, limits: Limits = DEFAULT_LIMITS, what: str = "payload", *, in_order: bool = False) -> str:
    """Return the value as compact JSON text, or refuse it; ``in_order``: the fields of objects by their names."""
    try:
        opaque = _look(value, limits.max_depth)
        text = _encoder_for(opaque=opaque, in_order=in_order)(value)
        size = len(text) if text.isascii() else len(text.encode())
    except (_Odd, ValueError, TypeError, RecursionError) as error:
        raise _culprit(value, limits, what) or _not_json(what, error) from error
    if "\\u0000" in text:
        refusal = _culprit(value, limits, what)
        if refusal is not None:
            raise refusal
    if opaque and text.count("{") + text.count("[") > limits.max_depth:
        plain = decode(text)
        try:
            _look(plain, limits.max_depth)
        except _Odd:
            raise _culprit(plain, limits, what) or _not_json(what, _Odd()) from None
    if size > limits.max_bytes:
        raise PayloadRefused(
            f"{what} takes {size:,} bytes as JSON, at most {limits.max_bytes:,} are allowed; "
            "store it elsewhere and publish a reference",
            field=what,
            limit=f"max_bytes={limits.max_bytes}",
        )
    return text


class Garbled(str):
    """Stored text that was not UTF-8: what can be shown of it."""

    __slots__ = ()


def decode(text: Any) -> Any:
    """Return the plain value of stored JSON text; ``PayloadInvalid`` says why it cannot be read, whoever wrote it.

    The text of our own publishers is always read. A row that somebody wrote with SQL may hold anything: numbers without
    end, nesting without end, NUL, lone surrogates, no JSON, no text.
    """
    if not isinstance(text, str | bytes):
        raise PayloadInvalid(f"is {type(text).__name__}, not text")
    if type(text) is Garbled:
        raise PayloadInvalid("is not UTF-8")
    try:
        text = text.decode() if isinstance(text, bytes) else text
        value = _decoder(text)
        _check_depth(text, value)
    except json.JSONDecodeError as error:
        raise PayloadInvalid(f"is not JSON: {str(error)[:200]}") from None
    except UnicodeDecodeError as error:
        raise PayloadInvalid(f"is not UTF-8 at byte {error.start:,}") from None
    except (_Odd, RecursionError):
        raise PayloadInvalid(f"is nested deeper than {_DEEPEST} levels") from None
    except ValueError:
        raise PayloadInvalid("holds an integer of more than 4,300 digits") from None
    if _is_suspect(text) and (wrong := _culprit(value, _WIDEST, "its value")) is not None:
        raise PayloadInvalid(f"cannot be read: {str(wrong).partition(';')[0]}")
    return value


def _is_suspect(text: str) -> bool:
    """Say whether stored text may hold characters that no publish takes."""
    escaped = "\\u" in text and _ODD_ESCAPE.search(text) is not None
    return escaped or (not text.isascii() and _has_lone_surrogate(text))


def decode_headers(text: Any) -> dict[str, str]:
    """Return stored headers; ``PayloadInvalid`` when they are not an object of strings."""
    found = decode(text)
    if not isinstance(found, dict) or not all(isinstance(value, str) for value in found.values()):
        raise PayloadInvalid("is not an object of strings")
    return found


def _check_depth(text: str, value: Any) -> None:
    if text.count("[") + text.count("{") > _DEEPEST:
        _look(value, _DEEPEST)


# --- JSON that others wrote ---

_EXACT_LENGTH = 16  # a point and 15 digits: a double holds every such number
_MOST_DIGITS = 767  # no double has more significant digits


def parse_strict(text: str | bytes) -> Any:
    """Return the value of JSON text from outside, or refuse text whose value would change on the way.

    Refused are keys that an object has twice, fractions that a double does not hold and whole numbers of more than
    4,300 digits (``PayloadRefused``); smaller whole numbers are kept exactly. Text that is no JSON, NaN included, is a
    ``json.JSONDecodeError``, bytes that are not UTF-8 a ``UnicodeDecodeError``; all three are ``ValueError``.
    """
    try:
        read = text if isinstance(text, str) else text.decode()
        value = _strict_decoder(read)
        _check_depth(read, value)
    except (PayloadRefused, json.JSONDecodeError, UnicodeDecodeError):
        raise
    except (_Odd, RecursionError):
        raise PayloadRefused("the JSON is nested too deeply; flatten it") from None
    except ValueError:
        raise PayloadRefused("the JSON holds an integer of more than 4,300 digits; send a string") from None
    return value


def _unique(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) == len(pairs):
        return found
    seen: set[str] = set()
    twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
    raise PayloadRefused(f"the JSON has the key {_short(twice)} twice in one object; send it once")


def _exact(text: str) -> float:
    """Read a number with a fraction or an exponent; written with as many digits as it has here, it is the same again.

    That takes doubles in every form in which others write them (0.1, 0.10000000000000001) and no other number.
    """
    number = float(text)
    if len(text) <= _EXACT_LENGTH and "e" not in text and "E" not in text:
        return number
    mantissa = re.split("[eE]", text, maxsplit=1)[0]
    digits = len(mantissa.replace(".", "").lstrip("-0").rstrip("0"))
    if digits == 0:
        return number
    is_double = 0.0 < abs(number) < math.inf and digits <= _MOST_DIGITS
    if is_double and Decimal(f"{number:.{digits}g}") == Decimal(text):
        return number
    raise PayloadRefused(f"the JSON has the number {text[:40]}, which a double does not hold exactly; send a string")


def _no_constant(name: str) -> Any:
    raise json.JSONDecodeError(f"{name} is not a number of JSON: send null or a string", name, 0)


_decoder = json.JSONDecoder(parse_constant=_no_constant).decode
_strict_decoder = json.JSONDecoder(object_pairs_hook=_unique, parse_float=_exact, parse_constant=_no_constant).decode


# --- refusing ---


class _Odd(Exception):
    """Something in the value needs a closer look."""


def _look(value: Any, room: int) -> bool:
    """Say whether anything but plain JSON values is inside; a key that is no string, or too deep, is odd.

    The encoder would turn such keys into strings without a word. Costs 0.1 µs a node.
    """
    if type(value) in _SCALARS:
        return False
    if not isinstance(value, dict | list | tuple):
        return True
    if room <= 0:
        raise _Odd
    opaque = type(value) not in _CONTAINERS
    parts: Iterable[Any] = value
    if isinstance(value, dict):
        for key in value:
            if type(key) is not str:
                opaque = _is_text(key)
        parts = value.values()
    for each in parts:
        if type(each) not in _SCALARS and _look(each, room - 1):
            opaque = True
    return opaque


def _is_text(key: Any) -> bool:
    if not isinstance(key, str):
        raise _Odd
    return True


def _culprit(value: Any, limits: Limits, what: str) -> PayloadRefused | None:
    """Find the first part that cannot be stored, and say where it is."""
    # Parents are kept by identity to tell a cycle from mere depth.
    waiting: list[tuple[Any, str, frozenset[int]]] = [(value, what, frozenset())]
    while waiting:
        each, path, parents = waiting.pop()
        wrong = _wrong_scalar(each)
        if wrong:
            return PayloadRefused(f"{path} {wrong}", field=path)
        if isinstance(each, str | int | float | None):
            continue
        if id(each) in parents:
            return PayloadRefused(f"{path} contains itself; JSON has no references", field=path)
        if not isinstance(each, dict | list | tuple):
            try:
                inner = to_jsonable_python(each)
            except Exception as error:  # noqa: BLE001 - a stranger's serializer may raise anything
                return _not_json(path, error, type(each).__qualname__)
            waiting.append((inner, path, parents))
            continue
        if len(parents) >= limits.max_depth:
            return PayloadRefused(
                f"{path} is nested deeper than {limits.max_depth} levels; flatten it",
                field=path,
                limit=f"max_depth={limits.max_depth}",
            )
        inside = parents | {id(each)}
        if isinstance(each, dict):
            wrong = next(filter(None, map(_wrong_key, each)), "")
            if wrong:
                return PayloadRefused(f"{path} {wrong}", field=path)
            waiting.extend((item, f"{path}.{key}", inside) for key, item in reversed(each.items()))
        else:
            waiting.extend((item, f"{path}[{n}]", inside) for n, item in reversed(list(enumerate(each))))
    return None


def _wrong_key(key: Any) -> str:
    if not isinstance(key, str):
        return f"has the key {_short(key)}; keys must be strings"
    wrong = _wrong_scalar(key)
    return f"has a key that {wrong}" if wrong else ""


def _wrong_scalar(value: Any) -> str:
    if isinstance(value, str):
        if "\0" in value:
            return "contains a NUL character, which no database stores as text; remove it"
        if not value.isascii() and _has_lone_surrogate(value):
            return "contains a lone surrogate, which is not Unicode text; decode it properly first"
    elif isinstance(value, float) and not math.isfinite(value):
        return f"is {value!r}, which JSON does not have; send None or a string"
    elif isinstance(value, int) and value.bit_length() > _MOST_BITS:
        return "is an integer of more than 4,200 digits; send a string"
    return ""


def _not_json(path: str, error: BaseException, kind: str | None = None) -> PayloadRefused:
    what = f"is a {kind} that" if kind else "holds something that"
    detail = f" ({str(error)[:200]})" if str(error) else ""
    return PayloadRefused(f"{path} {what} cannot be written as JSON{detail}", field=path)


def _has_lone_surrogate(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return True
    return False


def _short(value: object) -> str:
    try:
        return repr(value)[:64]
    except Exception:  # noqa: BLE001 - a stranger's __repr__
        return f"a {type(value).__qualname__}"


def check_text(value: str, field: str, limit: int) -> str:
    """Return the text when it can be stored in at most ``limit`` characters; refuse it otherwise."""
    if not isinstance(value, str):
        raise PayloadRefused(f"{field} must be a string, not {type(value).__qualname__}", field=field)
    if len(value) > limit:
        raise PayloadRefused(
            f"{field} has {len(value):,} characters, at most {limit:,} are allowed",
            field=field,
            limit=f"max_length={limit}",
        )
    wrong = _wrong_scalar(value)
    if wrong:
        raise PayloadRefused(f"{field} {wrong}", field=field)
    return value


def check_name(value: str, field: str, limit: int) -> str:
    """Return the name of something: not empty, on one line; refuse it otherwise."""
    check_text(value, field, limit)
    if not value.strip():
        raise PayloadRefused(f"{field} must not be empty", field=field)
    if has_controls(value):
        raise PayloadRefused(f"{field} must be on one line, without control characters", field=field)
    return value


def check_whole(value: object, field: str) -> int:
    """Return the number when every store can hold it; refuse it otherwise."""
    if type(value) is int and 0 <= value <= _LARGEST:
        return value
    shown = "this one" if type(value) is int else f"a {type(value).__qualname__}"
    raise PayloadRefused(f"{field} must be a whole number from 0 to {_LARGEST}, not {shown}", field=field)


_LARGEST = 2**63 - 1
_MOST_HEADERS = 100
_MOST_HEADER_BYTES = 16_384


def encode_headers(headers: Mapping[str, str] | None) -> str:
    """Return headers as JSON text: names and values are strings, at most 100 of them, 16 KiB in all."""
    if not headers:
        return "{}"
    if not isinstance(headers, Mapping):
        raise PayloadRefused(f"headers must be a mapping, not a {type(headers).__qualname__}", field="headers")
    if len(headers) > _MOST_HEADERS:
        raise PayloadRefused(
            f"{len(headers)} headers are given, at most {_MOST_HEADERS} are allowed",
            field="headers",
            limit=f"max_headers={_MOST_HEADERS}",
        )
    given = dict(headers)
    if not all(type(name) is str is type(value) and name for name, value in given.items()):
        _check_headers(given)
    try:
        text = _plain_encoder(given)
        size = len(text) if text.isascii() else len(text.encode())
    except ValueError:
        _check_headers(given)
        raise
    if "\\u0000" in text:
        _check_headers(given)
    if size > _MOST_HEADER_BYTES:
        raise PayloadRefused(
            f"headers take {size:,} bytes as JSON, at most {_MOST_HEADER_BYTES:,} are allowed",
            field="headers",
            limit=f"max_bytes={_MOST_HEADER_BYTES}",
        )
    return text


def _check_headers(headers: Mapping[str, str]) -> None:
    for name, value in headers.items():
        if not check_text(name, "headers", _MOST_HEADER_BYTES):
            raise PayloadRefused("headers have an empty name", field="headers")
        check_text(value, f"headers.{name[:64]}", _MOST_HEADER_BYTES)


# --- the way out ---

_MOST_ERRORS = 5
_MOST_READ_ERRORS = 1_000


class Decoder(Generic[T]):
    """Turns stored text into the type a handler asks for; without one, into plain values."""

    __slots__ = ("_adapter", "_name", "_plain")

    def __init__(self, annotation: type[T] | Any = Any) -> None:
        self._name = getattr(annotation, "__qualname__", None) or str(annotation)
        self._plain = annotation in (Any, object, None, inspect.Parameter.empty)
        self._adapter: pydantic.TypeAdapter[T] | None = None
        if self._plain or annotation in (dict, dict[str, Any]):
            return
        # Imported when a handler asks for a type: commands that only look at the database start sooner without.
        from pydantic import TypeAdapter  # noqa: PLC0415 - see above
        from pydantic.errors import PydanticUserError  # noqa: PLC0415 - see above

        try:
            self._adapter = TypeAdapter(annotation)
        except (PydanticUserError, NameError, TypeError) as error:
            raise ConfigurationError(
                f"a payload cannot be read as {self._name}: {error}; "
                "annotate with a pydantic model, a dataclass or dict"
            ) from error

    @property
    def takes_anything(self) -> bool:
        """Whether every JSON value fits."""
        return self._plain

    def __call__(self, text: str | bytes) -> T:
        if isinstance(text, bytes):
            text = text.decode()
        try:
            if self._adapter is not None:
                if "NaN" in text or "Infinity" in text or type(text) is Garbled or _is_suspect(text):
                    decode(text)  # pydantic's own parser takes what no publish does
                return self._adapter.validate_json(text)
            value = decode(text)
        except ValidationError as error:
            raise PayloadInvalid(f"payload does not fit {self._name}: {_summary(error)}") from error
        except PayloadInvalid as error:
            raise PayloadInvalid(f"payload {error}") from error
        if not self._plain and type(value) is not dict:
            raise PayloadInvalid(f"payload does not fit dict: it is a {type(value).__name__}")
        return cast("T", value)


def _summary(error: ValidationError) -> str:
    """Name the first few faults by path; never the values, which may be secret."""
    count = error.error_count()
    if count > _MOST_READ_ERRORS:  # listing 300,000 takes 0.2 s
        return f"{count:,} errors"
    found = error.errors(include_url=False, include_input=False, include_context=False)
    shown = "; ".join(f"{_path(each['loc'])}{each['msg'][:200]}" for each in found[:_MOST_ERRORS])
    return f"{shown}; and {count - _MOST_ERRORS:,} more" if count > _MOST_ERRORS else shown


def _path(loc: tuple[int | str, ...]) -> str:
    path = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in loc)[:200].lstrip(".")
    return f"{path}: " if path else ""


# --- for other eyes ---


def redact(value: Any, paths: Collection[str], mask: str = "•••") -> Any:
    """Return a copy with the named fields masked, upper or lower case alike.

    ``"password"`` is masked wherever it stands; ``"card.number"`` from the top; ``*`` is any one name.
    Lists are looked through, so ``"items[].token"`` and ``"items.token"`` mean the same.
    """
    anywhere, rooted = _compiled(frozenset(paths))
    return _redacted(value, anywhere, rooted, mask) if anywhere or rooted else value


_Tails = tuple[tuple[str, ...], ...]


@lru_cache(maxsize=256)
def _compiled(paths: frozenset[str]) -> tuple[frozenset[str], _Tails]:
    split = [tuple(_segments(path)) for path in paths]
    anywhere = frozenset(path[0] for path in split if len(path) == 1 and path[0] != "*")
    return anywhere, tuple(path for path in split if len(path) > 1 or path == ("*",))


def _segments(path: str) -> Iterator[str]:
    for segment in re.sub(r"\[[0-9*]*\]", "", path).split("."):
        if segment:
            yield segment.casefold()


def _redacted(value: Any, anywhere: frozenset[str], tails: _Tails, mask: str) -> Any:
    if isinstance(value, dict):
        copy = {}
        for key, each in value.items():
            name = key.casefold() if isinstance(key, str) else str(key)
            matching = [tail[1:] for tail in tails if tail[0] in (name, "*")]
            hidden = name in anywhere or () in matching
            copy[key] = mask if hidden else _redacted(each, anywhere, tuple(matching), mask)
        return copy
    if isinstance(value, list | tuple):
        return [_redacted(each, anywhere, tails, mask) for each in value]
    return value
