"""Settings: what the environment says, read once when the app is made; what cannot work is refused there."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Self
from urllib.parse import urlsplit

from redrive import ConfigurationError, RetryPolicy

_MB: Final = 1_048_576
_UNITS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3_600.0, "d": 86_400.0}


@dataclass(frozen=True, slots=True)
class Limits:
    """How much one upload may hold."""

    upload_bytes: int = 512 * _MB
    total_bytes: int = 2_048 * _MB
    entry_bytes: int = 64 * _MB
    csv_bytes: int = 64 * _MB
    entries: int = 250_000
    ratio: int = 200
    """How many times larger than the whole ZIP its contents may be."""
    files_of_a_row: int = 200


@dataclass(frozen=True, slots=True)
class Settings:
    """Everything that can be said; spans in seconds."""

    url: str = "sqlite:///evidence.db"
    case_url: str = "http://127.0.0.1:8400"
    case_token: str = ""
    case_timeout: float = 10.0
    case_connections: int = 64
    case_probe: float = 5.0
    """After how long a case API that was away is tried for the first time; then ever later, up to twelve times that."""
    claim: float = 600.0
    """How long one attempt at a request may take, and for how long it keeps duplicates away from its artifacts."""
    objects: str = "evidence-files"
    kafka: str = ""
    kafka_prefix: str = ""
    kafka_partitions: int = 6
    """Missing topics are created with so many partitions; 0: they are not created."""
    token: str = ""
    notice_url: str = ""
    retry: RetryPolicy = field(default_factory=RetryPolicy.patient)
    scheduler_every: float = 30.0
    batch_rows: int = 200
    batch_pause: tuple[float, float] = (2.0, 5.0)
    n1_after: float = 86_400.0
    """N1 is forced this long after a job was unpacked, with artifacts that were never tried."""
    n2_after: float = 86_400.0
    """N2 is forced this long after N1."""
    n2_leftovers_fail: bool = True
    outage_calls: int = 20
    """So many calls in a row without an answer, or with 503, are an outage and no longer the artifacts' failures."""
    reconcile_every: float = 3_600.0
    limits: Limits = Limits()
    sample: bool = False

    @classmethod
    def from_env(cls, environ: Mapping[str, str] = os.environ) -> Self:
        """Read ``EVIDENCE_…`` variables, and REDRIVE_URL for the database."""
        said, default = _Said(environ), cls()
        sample = said.flag("EVIDENCE_SAMPLE", default=False)
        base = said.span("EVIDENCE_RETRY_DELAY", 2.0 if sample else 300.0)
        cap = said.span("EVIDENCE_RETRY_CAP", 3_600.0)
        pause = (said.span("EVIDENCE_BATCH_PAUSE_MIN", 2.0), said.span("EVIDENCE_BATCH_PAUSE_MAX", 5.0))
        if pause[0] > pause[1]:
            raise ConfigurationError("EVIDENCE_BATCH_PAUSE_MIN must not be longer than EVIDENCE_BATCH_PAUSE_MAX")
        return cls(
            url=environ.get("REDRIVE_URL") or default.url,
            case_url=said.web("EVIDENCE_CASE_URL", default.case_url),
            case_token=environ.get("EVIDENCE_CASE_TOKEN", ""),
            case_timeout=said.span("EVIDENCE_CASE_TIMEOUT", 1.0 if sample else 10.0),
            case_connections=said.whole("EVIDENCE_CASE_CONNECTIONS", 64, 1, 10_000),
            case_probe=said.span("EVIDENCE_CASE_PROBE", 5.0, least=0.05),
            claim=said.span("EVIDENCE_CLAIM", default.claim, least=1.0),
            objects=environ.get("EVIDENCE_OBJECTS") or default.objects,
            kafka=environ.get("EVIDENCE_KAFKA", ""),
            kafka_prefix=environ.get("EVIDENCE_KAFKA_PREFIX", ""),
            kafka_partitions=said.whole("EVIDENCE_KAFKA_PARTITIONS", default.kafka_partitions, 0, 10_000),
            token=environ.get("EVIDENCE_TOKEN", ""),
            notice_url=said.web("EVIDENCE_NOTICE_URL", ""),
            retry=RetryPolicy(max_attempts=3, base_delay=base, max_delay=max(base, cap), jitter=0.2),
            scheduler_every=said.span("EVIDENCE_SCHEDULER_EVERY", 1.0 if sample else 30.0, least=1.0),
            batch_rows=said.whole("EVIDENCE_BATCH_ROWS", 200, 1, 10_000),
            batch_pause=(0.2, 0.5) if sample and "EVIDENCE_BATCH_PAUSE_MIN" not in environ else pause,
            n1_after=said.span("EVIDENCE_N1_AFTER", 86_400.0),
            n2_after=said.span("EVIDENCE_N2_AFTER", 86_400.0),
            n2_leftovers_fail=said.flag("EVIDENCE_N2_LEFTOVERS_FAIL", default=True),
            outage_calls=said.whole("EVIDENCE_OUTAGE_CALLS", 20, 1, 1_000_000),
            reconcile_every=said.span("EVIDENCE_RECONCILE_EVERY", 3_600.0, least=1.0),
            limits=Limits(
                upload_bytes=said.whole("EVIDENCE_UPLOAD_MB", 512, 1, 1_048_576) * _MB,
                total_bytes=said.whole("EVIDENCE_TOTAL_MB", 2_048, 1, 1_048_576) * _MB,
                entry_bytes=said.whole("EVIDENCE_FILE_MB", 64, 1, 1_048_576) * _MB,
                entries=said.whole("EVIDENCE_FILES", 250_000, 1, 10_000_000),
                ratio=said.whole("EVIDENCE_RATIO", 200, 1, 1_000_000),
            ),
            sample=sample,
        )


@dataclass(frozen=True, slots=True)
class _Said:
    """Reads one variable at a time and says which one is wrong."""

    environ: Mapping[str, str]

    def whole(self, name: str, default: int, least: int, most: int) -> int:
        text = self.environ.get(name, "").strip()
        if not text:
            return default
        if not (text.isascii() and text.isdecimal() and len(text) <= 12 and least <= int(text) <= most):  # noqa: PLR2004
            raise ConfigurationError(f"{name}={text[:64]!r} is not a whole number from {least} to {most:,}")
        return int(text)

    def span(self, name: str, default: float, *, least: float = 0.0) -> float:
        text = self.environ.get(name, "").strip()
        if not text:
            return default
        digits = text.rstrip("msdh")
        try:
            seconds = float(digits) * _UNITS[text[len(digits) :]]
        except (ValueError, KeyError):
            raise ConfigurationError(f"{name}={text[:64]!r} is not a span: write 500ms, 5s, 10m, 24h or 2d") from None
        if not least <= seconds < 10 * 365 * 86_400:
            raise ConfigurationError(f"{name}={text[:64]!r} must be at least {least:g}s, and less than ten years")
        return seconds

    def flag(self, name: str, *, default: bool) -> bool:
        text = self.environ.get(name, "").strip().lower()
        if text not in ("", "0", "1", "true", "false", "yes", "no"):
            raise ConfigurationError(f"{name}={text[:64]!r} is neither 1 nor 0")
        return text in ("1", "true", "yes") if text else default

    def web(self, name: str, default: str) -> str:
        text = self.environ.get(name, "").strip() or default
        try:
            parts = urlsplit(text)
            good = not text or (parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0)
        except ValueError:
            good = False
        if not good:
            raise ConfigurationError(f"{name}={text[:200]!r} is not a URL: write http://host:port or https://host")
        return text.rstrip("/")
