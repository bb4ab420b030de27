"""What a broker must be able to do, and the words for what travels on it.

A broker sends a message and says when it has been acknowledged; a subscription fetches messages and acknowledges them.
Both raise ``DependencyUnavailable`` with the broker's name while it cannot be reached, or refuses us altogether, and
``BrokerRefused`` when it has answered that it will not take this one message. Whoever calls may try again at once: a
broker connects by itself, and never more than one attempt at a time.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any, Final, Literal, NamedTuple, Protocol

from redrive.clock import Clock

Headers = tuple[tuple[str, bytes], ...]

OURS: Final = "redrive."
"""How the event headers begin that are about the journey; they do not travel as they are."""


class Mode(StrEnum):
    """Where the attributes of an event travel: in the body beside the data, or in headers."""

    STRUCTURED = "structured"
    BINARY = "binary"


class LinkState(StrEnum):
    """How it stands between us and a broker."""

    IDLE = "idle"
    """Nothing has been asked of it yet."""
    CONNECTING = "connecting"
    OK = "ok"
    UNREACHABLE = "unreachable"
    REFUSED = "refused"
    """It answers, but not to us: credentials, permissions, a stream or topic that is not there."""
    PAUSED = "paused"
    """We take nothing from it for now: the store is full, or too much is waiting."""


class Message(NamedTuple):  # made for every event: in a third of the time that a frozen dataclass takes
    """What travels. ``body`` is none for a tombstone; ``id`` is what a broker may recognise a repetition by."""

    topic: str
    body: bytes | None
    headers: Headers = ()
    key: bytes | None = None
    id: str = ""

    def header(self, name: str) -> bytes | None:
        """Find a header, upper or lower case alike."""
        wanted = name.lower()
        return next((value for each, value in self.headers if each.lower() == wanted), None)


class Received(NamedTuple):
    """A message that came, and where it stood: ``ORDERS:1042``, ``orders/3/1042``."""

    message: Message
    position: str
    source: str
    """Names the stream or topic, for messages that do not say where they come from."""
    at: datetime | None = None
    handle: Any = None
    """The broker's own, to acknowledge it by."""


@dataclass(slots=True)
class Link:
    """How it stands, since when, and what was wrong last."""

    state: LinkState = LinkState.IDLE
    since: datetime | None = None
    error: str = ""
    ok_at: datetime | None = None
    moved: int = 0
    lag: int | None = None
    note: str = ""
    """Something to know although it is well."""

    def turn(self, state: LinkState, clock: Clock, error: str = "") -> bool:
        """Take note of how it stands now; say whether that is news."""
        news = state is not self.state
        if news:
            self.state, self.since = state, clock.now()
        self.error = error if state is not LinkState.OK else ""
        return news


class Broker(Protocol):
    """One broker, as a relay sees it. Its name is that of a dependency: with a circuit, and events that wait."""

    name: str
    prefix: Literal["ce-", "ce_"]
    """How the headers of CloudEvents begin there: ``ce-`` wants values in ASCII, ``ce_`` takes any."""

    def use(self, clock: Clock) -> None:
        """Tell it the app's clock."""

    async def send(self, message: Message) -> None:
        """Send, and return when the broker has acknowledged it. Any number may be under way at once."""

    async def close(self) -> None:
        """Let go of the connection; the next call makes another."""

    @property
    def link(self) -> Link: ...


class Subscription(Protocol):
    """Messages as they come: in order, until ``close``."""

    async def fetch(self, limit: int, seconds: float) -> list[Received]:
        """Take up to so many; wait for the first one for so long, not at all for 0."""

    async def acknowledge(self, batch: Sequence[Received]) -> None:
        """Say that they are stored. One that is lost on the way costs a repetition."""

    async def hold(self) -> None:
        """Stay a member while nothing is fetched, so that nobody takes us for dead."""

    async def lag(self) -> int | None:
        """Count what waits for us at the broker, if it knows."""

    async def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Beginning:
    """Where a consumer group began to take from a topic that had messages already."""

    topic_id: str
    """Tells a topic from one of the same name that was created later; empty where the broker has no such ids."""
    positions: Mapping[int, int]
    """The first position by partition. A partition that is missing here begins with its first message."""


class Beginnings(Protocol):
    """Remembers where groups began: a broker forgets a group that has been away for some days."""

    async def begun(self, name: str) -> Beginning | None:
        """Return where a group began; None when it never has."""

    async def begin(self, name: str, beginning: Beginning) -> Beginning:
        """Keep where a group begins; return what is kept, which may be what somebody else kept at the same time."""


class Inlet(Protocol):
    """Where an intake takes from: part of a broker, to be subscribed to."""

    @property
    def broker(self) -> Broker: ...

    @property
    def name(self) -> str:
        """Unique in the app; part of the intake's target."""

    @property
    def is_exclusive(self) -> bool:
        """Only one process at a time may subscribe; we see to that. A broker with consumer groups does so itself."""

    async def subscribe(self, beginnings: Beginnings | None = None) -> Subscription: ...


@dataclass(frozen=True, slots=True)
class Destination:
    """Where a relay sends to."""

    broker: Broker
    topic: str

    @property
    def name(self) -> str:
        return f"{self.broker.name}:{self.topic}"
