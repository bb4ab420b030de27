"""Request: one row of the table of requests, and how it is read and written."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from datetime import datetime
from typing import Any, Final

from redrive import Redrive, Work
from redrive.apps.controlplane.tables import Sql
from redrive.apps.controlplane.words import ENDED, KINDS, State, Wanted


@dataclass(frozen=True, slots=True)
class Request:
    """A request as it stands. ``step``: which of its things is made or undone now, ``outcome``: how it will end."""

    id: str
    site: str
    home: str
    owner: str
    size: str
    volume_gb: int
    image: str
    state: State
    deadline_at: str
    created_at: str
    changed_at: str
    step: str | None = None
    outcome: State | None = None
    reason: str | None = None
    error_class: str | None = None
    operation: str | None = None
    resource: str | None = None
    safe_to_retry: bool | None = None
    cancelled_by: str | None = None
    address: str | None = None
    volume: str | None = None
    machine: str | None = None
    reduced: bool = False
    version: int = 0
    asked_count: int = 0
    key: str | None = None

    @property
    def has_ended(self) -> bool:
        return self.state in ENDED

    @property
    def order(self) -> Wanted:
        given = {kind: getattr(self, kind) for kind in KINDS if getattr(self, kind) is not None}
        return Wanted(
            request=self.id, owner=self.owner, size=self.size, volume_gb=self.volume_gb, image=self.image, given=given
        )

    def to_json(self) -> dict[str, Any]:
        """Return a plain dict."""
        return {name: value for name, value in asdict(self).items() if name not in ("version", "asked_count", "key")}


_NAMES: Final = tuple(each.name for each in fields(Request))
_COLUMNS: Final = ", ".join(_NAMES)


class Book:
    """The table of requests."""

    def __init__(self, app: Redrive) -> None:
        self._sql = Sql(app)

    async def insert(self, tx: Work, request: Request) -> bool:
        """Write a new one; answer whether its id and its key were new."""
        places = ", ".join(f"${number}" for number in range(1, len(_NAMES) + 1))
        insert = f"insert into controlplane.request ({_COLUMNS}) values ({places}) on conflict do nothing"
        return bool(await tx.execute(self._sql(insert), *_values(request)))

    async def update(self, tx: Work, request: Request) -> None:
        """Write one as it stands now."""
        places = ", ".join(f"{name} = ${number}" for number, name in enumerate(_NAMES[1:], start=2))
        await tx.execute(self._sql(f"update controlplane.request set {places} where id = $1"), *_values(request))

    async def locked(self, tx: Work, request_id: str) -> Request | None:
        """Read one that nobody else may change before this transaction ends."""
        return next(iter(await self.where(tx, "id = $1 for update", request_id)), None)

    async def where(self, tx: Work, condition: str, *values: Any) -> list[Request]:
        """Read those for which a condition holds."""
        query = f"select {_COLUMNS} from controlplane.request where {condition}"
        return [_request(row) for row in await tx.fetch(self._sql(query), *values)]


def _request(row: Sequence[Any]) -> Request:
    values: dict[str, Any] = dict(zip(_NAMES, row, strict=True))
    values["state"] = State(values["state"])
    values["outcome"] = None if values["outcome"] is None else State(values["outcome"])
    values["reduced"] = bool(values["reduced"])
    values["safe_to_retry"] = None if values["safe_to_retry"] is None else bool(values["safe_to_retry"])
    return Request(**values)


def _values(request: Request) -> list[Any]:
    return [getattr(request, name) for name in _NAMES]


def instant(at: datetime) -> str:
    """Write an instant so that texts sort as instants do."""
    return at.isoformat(timespec="microseconds")
