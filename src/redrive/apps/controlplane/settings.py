"""Settings: what a site can be told, and how the environment says it. A bad value is an error at start."""

import ipaddress
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from redrive import ConfigurationError, RetryPolicy, parse_duration
from redrive.apps.controlplane.words import SERVICES
from redrive.apps.controlplane.world import Fault

_NAME: Final = "CONTROLPLANE_"
_LARGEST_POOL: Final = 65_536


@dataclass(frozen=True, slots=True)
class Settings:
    """How the services of a site work."""

    site: str = "here"
    peers: Sequence[str] = ()
    pool: str = "10.20.0.0/24"
    quota_gb: int = 2_000
    """How many gigabytes one owner may have at a site."""
    retry: RetryPolicy = field(default_factory=RetryPolicy.standard)
    timeout: str = "30s"
    """Of one attempt at one thing."""
    deadline: str = "15m"
    """Of a request, from its arrival until it is ready."""
    hold: str = "2m"
    """For how long an address is reserved while it is being announced: longer than an attempt may take."""
    reconcile: str | None = "30s"
    stalled: str = "5m"
    """After how long without a change a request is looked after."""
    circuit: Mapping[str, Any] = field(default_factory=lambda: {"release_rate": 50.0})
    """How the dependencies are judged."""

    def addresses(self) -> list[str]:
        """List the pool."""
        return [str(each) for each in ipaddress.ip_network(self.pool).hosts()]


@dataclass(frozen=True, slots=True)
class Environment:
    """What the environment says."""

    settings: Settings
    services: tuple[str, ...]
    url: str
    world: str
    nats: str | None
    also: tuple[str, ...]
    faults: tuple[Fault, ...]
    sample: bool
    token: str | None


def from_environment(environ: Mapping[str, str]) -> Environment:
    """Read CONTROLPLANE_…; ``ConfigurationError`` names what cannot be understood."""
    known = {_NAME + each for each in _READ}
    unknown = sorted(name for name in environ if name.startswith(_NAME) and name not in known)
    if unknown:
        raise ConfigurationError(f"there is no setting {unknown[0]}: there are {', '.join(sorted(known))}")

    def said(name: str, default: str = "") -> str:
        return environ.get(_NAME + name, "").strip() or default

    settings = Settings(
        site=_name("SITE", said("SITE", "here")),
        peers=tuple(_name("PEERS", each) for each in said("PEERS").split()),
        pool=_pool(said("POOL", "10.20.0.0/24")),
        quota_gb=_whole("QUOTA_GB", said("QUOTA_GB", "2000")),
        timeout=_span("TIMEOUT", said("TIMEOUT", "30s")),
        deadline=_span("DEADLINE", said("DEADLINE", "15m")),
        reconcile=_span("RECONCILE", said("RECONCILE", "30s")),
    )
    nats = said("NATS") or None
    services = tuple(said("SERVICES", " ".join(SERVICES)).split())
    _check_together(services, settings, nats)
    return Environment(
        settings=settings,
        services=services,
        url=said("URL") or environ.get("REDRIVE_URL") or "sqlite:///controlplane.db",
        world=said("WORLD", "controlplane-world.db"),
        nats=nats,
        also=tuple(said("ALSO").split()),
        faults=tuple(Fault.parse(each) for each in said("FAULTS").split()),
        sample=_yes_or_no("SAMPLE", said("SAMPLE", "0")),
        token=said("TOKEN") or None,
    )


_READ: Final = (
    "SITE", "PEERS", "POOL", "QUOTA_GB", "TIMEOUT", "DEADLINE", "RECONCILE", "NATS", "SERVICES", "URL", "WORLD", "ALSO",
    "FAULTS", "SAMPLE", "TOKEN",
)  # fmt: skip


def _check_together(services: Sequence[str], settings: Settings, nats: str | None) -> None:
    strange = [each for each in services if each not in SERVICES]
    if strange or not services:
        raise ConfigurationError(f"{_NAME}SERVICES takes some of {', '.join(SERVICES)}, not {' '.join(services)!r}")
    if settings.site in settings.peers:
        raise ConfigurationError(f"{_NAME}PEERS are the other sites: leave {settings.site!r} out")
    if nats is None and (settings.peers or set(services) != set(SERVICES)):
        raise ConfigurationError(
            f"{_NAME}NATS is missing: other sites, and services in other processes, are reached through it, like "
            "nats://127.0.0.1:4222"
        )


def _name(setting: str, text: str) -> str:
    if not text.isidentifier() or not text.isascii():
        raise ConfigurationError(f"{_NAME}{setting}={text!r} is no name of a site: letters and digits, like berlin")
    return text.lower()


def _pool(text: str) -> str:
    try:
        size = ipaddress.ip_network(text).num_addresses
    except ValueError as error:
        raise ConfigurationError(f"{_NAME}POOL={text!r} is no network like 10.20.0.0/24: {error}") from None
    if size > _LARGEST_POOL:
        raise ConfigurationError(f"{_NAME}POOL={text!r} has more than {_LARGEST_POOL:,} addresses: take a smaller one")
    return text


def _span(setting: str, text: str) -> str:
    try:
        parse_duration(text)
    except ConfigurationError as error:
        raise ConfigurationError(f"{_NAME}{setting}: {error}") from None
    return text


def _whole(setting: str, text: str) -> int:
    if not text.isdecimal() or int(text) == 0:
        raise ConfigurationError(f"{_NAME}{setting}={text!r} is no whole number above 0")
    return int(text)


def _yes_or_no(setting: str, text: str) -> bool:
    if text not in ("0", "1"):
        raise ConfigurationError(f"{_NAME}{setting} is 0 or 1, not {text!r}")
    return text == "1"
