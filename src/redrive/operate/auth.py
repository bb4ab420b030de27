"""Auth: who may do what, on every surface that is reached over a network.

A role is a set of permissions; every route names the one it needs. Who shows a token is known by its name, which is the
actor on the trail. Tokens are shown once, kept as hashes, expire, and can be revoked. A browser shows its token
once and has a cookie from then on, which ends with the token at the latest.

Whoever has the database itself may do everything: the command line needs no token, and makes the first one.
"""

import hashlib
import hmac
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any, Final
from uuid import UUID

from redrive.app import Redrive
from redrive.duration import span
from redrive.errors import ConfigurationError, NotFound, RedriveError, Refused, StoreUnavailable
from redrive.instant import instant_of, iso
from redrive.logs import log
from redrive.replay import check_actor

PREFIX: Final = "rdv_"
DEFAULT_EXPIRY: Final = "90d"
AGENT: Final = "agent:"
"""How the name of an agent begins on the trail; no token and no proxy can name anybody like that."""

SIGN_IN_SECONDS: Final = 43_200.0
REMEMBERED_SECONDS: Final = 5.0
"""How long a token that was revoked elsewhere may still open something."""

_LONGEST_EXPIRY: Final = 5 * 365.25 * 86_400
_USED_SECONDS: Final = 3_600.0
_MOST_REMEMBERED: Final = 10_000
_MOST_LISTED: Final = 1_000
_SHORTEST_ID: Final = 8  # nobody's token is revoked for a letter
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@+-]{0,99}")
_IDENTITY: Final = re.compile(r"[^\x00-\x20\x7f:][^\x00-\x1f\x7f:]{0,99}")


class Role(StrEnum):
    """What somebody is here for."""

    VIEWER = "viewer"
    """Looks at everything but secrets."""

    PUBLISHER = "publisher"
    """A program that publishes, and sees nothing."""

    OPERATOR = "operator"
    """Looks, reveals, acts on events, redrives, approves, tunes policies."""

    ADMIN = "admin"
    """All of that, and settings, purges and tokens."""

    AGENT = "agent"
    """Looks, plans, replays one event, starts small redrives."""


class Permission(StrEnum):
    """What a route needs."""

    LOOK = "look"
    REVEAL = "reveal"
    PUBLISH = "publish"
    REPLAY = "replay"
    ACT = "act"
    REDRIVE = "redrive"
    APPROVE = "approve"
    TUNE = "tune"
    SET = "set"
    PURGE = "purge"
    TOKENS = "tokens"


MEANING: Final[Mapping[Permission, str]] = {
    Permission.LOOK: "see everything but secrets",
    Permission.REVEAL: "see one event's secrets; it is on the trail",
    Permission.PUBLISH: "publish events",
    Permission.REPLAY: "replay one dead letter, try it as a shadow",
    Permission.ACT: "cancel, discard, restore, release keys, open and close circuits, hold, describe groups",
    Permission.REDRIVE: "plan, start, pause, resume and abort redrives",
    Permission.APPROVE: "agree with somebody else's plan",
    Permission.TUNE: "change policies",
    Permission.SET: "change settings that hold for everybody",
    Permission.PURGE: "remove what ended long ago",
    Permission.TOKENS: "create and revoke tokens",
}

_OPERATOR: Final = frozenset(Permission) - {Permission.SET, Permission.PURGE, Permission.TOKENS}
ALLOWED: Final[Mapping[Role, frozenset[Permission]]] = {
    Role.VIEWER: frozenset({Permission.LOOK}),
    Role.PUBLISHER: frozenset({Permission.PUBLISH}),
    Role.OPERATOR: _OPERATOR,
    Role.ADMIN: frozenset(Permission),
    Role.AGENT: frozenset({Permission.LOOK, Permission.REPLAY, Permission.REDRIVE}),
}


class How(StrEnum):
    """How somebody made himself known."""

    TOKEN = "token"  # noqa: S105 - the word, not one of them
    COOKIE = "cookie"
    PROXY = "proxy"
    OPEN = "open"
    PIPE = "pipe"


@dataclass(frozen=True, slots=True)
class Caller:
    """Who calls; ``proof`` is the hash of what was shown."""

    name: str
    role: Role
    how: How
    proof: str = ""

    @property
    def actor(self) -> str:
        """The name on the trail."""
        return f"{AGENT}{self.name}" if self.role is Role.AGENT else self.name

    def may(self, permission: Permission) -> bool:
        """Say whether the role allows it."""
        return permission in ALLOWED[self.role]


def is_agent(actor: str) -> bool:
    """Say whether this is an agent, for whom people decide."""
    return actor.startswith(AGENT)


ANYBODY: Final = Caller("anybody", Role.VIEWER, How.OPEN)
"""Whoever looks at a server that was opened for viewing on its own machine."""


class NotSignedIn(RedriveError):
    """Nothing was shown that opens anything."""


class Forbidden(RedriveError):
    """The role does not allow this."""


class ForeignOrigin(RedriveError):
    """A page of another origin has sent this, or nothing shows that it has not."""


@dataclass(frozen=True, slots=True)
class Token:
    """What is known of a token; its secret is not."""

    id: UUID
    name: str
    role: Role
    created_at: datetime
    created_by: str
    expires_at: datetime
    last_used_at: datetime | None
    revoked_at: datetime | None
    revoked_by: str | None
    now: datetime

    @property
    def state(self) -> str:
        """Whether it opens anything: live, expired or revoked."""
        if self.revoked_at is not None:
            return "revoked"
        return "live" if self.expires_at > self.now else "expired"

    def to_json(self) -> dict[str, Any]:
        """Return a plain dict."""
        return {
            "id": str(self.id),
            "name": self.name,
            "role": str(self.role),
            "state": self.state,
            "created_at": iso(self.created_at),
            "created_by": self.created_by,
            "expires_at": iso(self.expires_at),
            "last_used_at": None if self.last_used_at is None else iso(self.last_used_at),
            "revoked_at": None if self.revoked_at is None else iso(self.revoked_at),
            "revoked_by": self.revoked_by,
        }


def proxied(name: str, role: Role) -> Caller:
    """Take a name that a trusted proxy vouches for."""
    if not _IDENTITY.fullmatch(name):
        raise NotSignedIn("the proxy names somebody in a way that cannot be written down: check its identity header")
    return Caller(name, role, How.PROXY)


class Tokens:
    """The tokens of one database; remembers for seconds what it has just looked up."""

    def __init__(self, app: Redrive) -> None:
        self._app = app
        self._remembered: dict[tuple[How, str], tuple[float, Caller]] = {}

    # Keeping them

    async def create(
        self, name: str, role: Role, *, by: str, expires: str | float = DEFAULT_EXPIRY
    ) -> tuple[Token, str]:
        """Make a token; return it and its secret, which nobody can show again."""
        if not _NAME.fullmatch(name):
            raise Refused(
                f"{name[:64]!r} cannot name a token: use letters, digits and . _ @ + -, at most 100, like ada or ci-bot"
            )
        seconds = span(expires, "expires")
        if not 0 < seconds <= _LONGEST_EXPIRY:
            raise ConfigurationError("a token lives for at most 5 years, and for more than nothing: say expires='90d'")
        who, secret = check_actor(by, "create"), PREFIX + self._app.clock.new_secret()
        await self._app.open()
        async with self._app.store.transaction() as tx:
            (row,) = await tx.run(
                "token_create", id=self._app.clock.new_id(), name=name, role=str(role), hash=_hash(secret), by=who,
                seconds=seconds,
            )  # fmt: skip
            token = _token(row)
            facts = {"token": str(token.id), "name": name, "role": str(role), "expires_at": iso(token.expires_at)}
            await tx.note("token-created", who, facts)
        return token, secret

    async def all(self) -> list[Token]:
        """List them, the newest first."""
        await self._app.open()
        return [_token(row) for row in await self._app.store.ask("tokens", limit=_MOST_LISTED)]

    async def find(self, text: str) -> Token:
        """Find one by its id, a beginning of it, or its name; of several with a name the one that is live."""
        wanted = text.strip()
        begins = wanted.lower() if len(wanted) >= _SHORTEST_ID else "?"
        found = [each for each in await self.all() if each.name == wanted or str(each.id).startswith(begins)]
        live = [each for each in found if each.state == "live"]
        if len(live) == 1 or len(found) == 1:
            return (live or found)[0]
        if not found:
            raise TokenNotFound(f"there is no token {wanted[:64]!r}: `redrive token ls` lists them")
        raise Refused(f"several tokens are meant by {wanted[:64]!r}: give the id, as `redrive token ls` shows it")

    async def revoke(self, token: Token, *, by: str) -> Token:
        """Have a token open nothing any more, nor a browser that has shown it."""
        who = check_actor(by, "revoke")
        async with self._app.store.transaction() as tx:
            rows = await tx.run("token_revoke", id=token.id, by=who)
            if not rows:
                raise Refused(f"token {token.name} was revoked already")
            await tx.note("token-revoked", who, {"token": str(token.id), "name": token.name, "role": str(token.role)})
        self._remembered.clear()
        return _token(rows[0])

    async def any_live(self) -> bool:
        """Say whether anybody could come in with a token."""
        await self._app.open()
        return bool(await self._app.store.ask("token_live"))

    # Being shown one

    async def caller(self, secret: str) -> Caller:
        """Say who shows this token."""
        return await self._known(How.TOKEN, "token_find", secret)

    async def signed_in(self, secret: str) -> Caller:
        """Say whose browser shows this cookie."""
        return await self._known(How.COOKIE, "sign_in_find", secret)

    async def sign_in(self, secret: str) -> str:
        """Take a browser's token; return what its cookie shall be."""
        await self.caller(secret)
        (row,) = await self._app.store.ask("token_find", hash=_hash(secret))
        shown = self._app.clock.new_secret()
        async with self._app.store.transaction() as tx:
            await tx.run("sign_in_purge", limit=100)
            await tx.run("sign_in", hash=_hash(shown), token_id=UUID(str(row["id"])), seconds=SIGN_IN_SECONDS)
        return shown

    async def sign_out(self, secret: str) -> None:
        """Have a cookie open nothing any more."""
        await self._app.open()
        async with self._app.store.transaction() as tx:
            await tx.run("sign_out", hash=_hash(secret))
        self._remembered.pop((How.COOKIE, _hash(secret)), None)

    async def _known(self, how: How, verb: str, secret: str) -> Caller:
        proof, now = _hash(secret), self._app.clock.monotonic()
        until, remembered = self._remembered.get((how, proof), (0.0, ANYBODY))
        if now < until:
            return remembered
        await self._app.open()
        rows = await self._app.store.ask(verb, hash=proof)
        if not rows or not hmac.compare_digest(str(rows[0]["hash"]), proof):
            raise NotSignedIn("this token is not known here: `redrive token create NAME` makes one")
        token = _token(rows[0])
        if token.state != "live":
            raise NotSignedIn(f"the token of {token.name} is {token.state}: `redrive token create {token.name}`")
        await self._note_use(token)
        caller = Caller(token.name, token.role, how, proof)
        left = (token.expires_at - token.now).total_seconds()
        self._remember(how, proof, now + min(REMEMBERED_SECONDS, left), caller)
        return caller

    def _remember(self, how: How, proof: str, until: float, caller: Caller) -> None:
        if len(self._remembered) >= _MOST_REMEMBERED:
            self._remembered.clear()
        self._remembered[how, proof] = (until, caller)

    async def _note_use(self, token: Token) -> None:
        """Write down that it was used, once an hour; a database that takes no writes is no reason to refuse it."""
        if token.last_used_at is not None and (token.now - token.last_used_at).total_seconds() < _USED_SECONDS:
            return
        try:
            async with self._app.store.transaction() as tx:
                await tx.run("token_used", id=token.id)
        except StoreUnavailable as error:
            log.debug("use of a token not noted", token=token.name, error=str(error))


class TokenNotFound(NotFound):
    """There is no token of this name."""


def _hash(secret: str) -> str:
    # 256 random bits need no salt and no slow hash: there is nothing to guess.
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).hexdigest()


def _token(row: Mapping[str, Any]) -> Token:
    values = {name: row[name] for name in Token.__dataclass_fields__}
    for name in ("created_at", "expires_at", "last_used_at", "revoked_at", "now"):
        values[name] = instant_of(values[name])
    values["id"] = UUID(str(row["id"]))
    values["role"] = Role(row["role"])
    return Token(**values)
