"""Cases: the case API, and what its answers mean.

    POST /cases/{case}/attachments                 Idempotency-Key: the artifact's id; the body is the file
    GET  /cases/{case}/attachments/{artifact}      200: it is attached; 404: it is not, or there is no such case

Every call ends within its limit, as an ``Answer``: attached, or an error code of the taxonomy. Only when nothing can be
reached at all is that no answer but an outage (``DependencyUnavailable``), which is nobody's attempt.
"""

import json
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote

import aiohttp

from redrive import DependencyUnavailable
from redrive.apps.evidence.settings import Settings
from redrive.apps.evidence.shelf import Content
from redrive.apps.wire import Broken, Unreachable, Wire

DEPENDENCY: Final = "case-api"
NETWORK: Final = frozenset(("ATTACHMENT_API_TIMEOUT", "503", "NETWORK_TIMEOUT"))
PERMANENT: Final = frozenset(
    ("CORRUPTED_FILE", "INVALID_FORMAT", "S3_NOT_FOUND", "401", "403", "UNAUTHORIZED", "CASE_NOT_FOUND")
)
"""DATA and AUTH; everything else is NETWORK or SYSTEM, and worth another attempt."""

_BY_STATUS: Final = {
    400: "INVALID_FORMAT", 401: "401", 403: "403", 404: "CASE_NOT_FOUND", 408: "ATTACHMENT_API_TIMEOUT",
    410: "CASE_NOT_FOUND", 413: "INVALID_FORMAT", 415: "INVALID_FORMAT", 422: "INVALID_FORMAT", 429: "503",
    500: "500", 502: "503", 503: "503", 504: "ATTACHMENT_API_TIMEOUT",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Answer:
    """How a call ended; no error code: it is attached."""

    error_code: str | None = None
    message: str | None = None
    called_off: bool = False
    """A person does not want it to be tried any more."""

    @property
    def is_silence(self) -> bool:
        """Whether the API did not really answer: too late, not at all, or that it cannot now."""
        return self.error_code in NETWORK

    @property
    def is_permanent(self) -> bool:
        return self.called_off or self.error_code in PERMANENT


ATTACHED: Final = Answer()


class Cases:
    """The client; one session for all handlers of this process."""

    def __init__(self, settings: Settings) -> None:
        self._url = settings.case_url
        self._seconds = settings.case_timeout
        headers = {"Authorization": f"Bearer {settings.case_token}"} if settings.case_token else {}
        self._wire = Wire(self._url, headers, connections=settings.case_connections, seconds=self._seconds)
        self._silent = 0
        self._outage_calls = settings.outage_calls

    async def attach(self, case_id: str, artifact_id: str, name: str, type_: str | None, content: Content) -> Answer:
        """Attach a file. Sent again with the same artifact id, it is attached once."""
        headers = {
            "Idempotency-Key": artifact_id,
            "Content-Type": type_ or "application/octet-stream",
            "X-File-Name": quote(name),
        }
        return await self._call("POST", f"/cases/{case_id}/attachments", headers, content) or ATTACHED

    async def is_attached(self, case_id: str, artifact_id: str) -> Answer | None:
        """Ask whether an artifact is attached: ``ATTACHED``, ``None`` for no, or why that cannot be said."""
        answer = await self._call("GET", f"/cases/{case_id}/attachments/{artifact_id}", {})
        if answer is None:
            return ATTACHED
        return None if answer.error_code == "CASE_NOT_FOUND" and answer.message == "ATTACHMENT_NOT_FOUND" else answer

    async def _call(self, method: str, path: str, headers: dict[str, str], body: Content = b"") -> Answer | None:
        """Call once; ``None`` for success. Counts how many calls in a row had no real answer."""
        answer = await self._called(method, path, headers, body)
        self._silent = self._silent + 1 if answer is not None and answer.is_silence else 0
        if self._silent >= self._outage_calls:
            raise DependencyUnavailable(DEPENDENCY, f"{self._silent} calls in a row without an answer")
        return answer

    async def _called(self, method: str, path: str, headers: dict[str, str], body: Content) -> Answer | None:
        try:
            status, said = await self._wire(method, path, headers, body)
        except Unreachable as error:
            raise DependencyUnavailable(DEPENDENCY, f"nobody answers at {self._url}: {error}") from error
        except TimeoutError:
            return Answer("ATTACHMENT_API_TIMEOUT", f"no answer within {self._seconds:g} s")
        except Broken as error:
            return Answer("NETWORK_TIMEOUT", f"the connection broke: {error}")
        if 200 <= status < 300:  # noqa: PLR2004 - success, in the words of HTTP
            return None
        code = _BY_STATUS.get(status) or ("SYSTEM_ERROR" if status >= 500 else str(status))  # noqa: PLR2004 - as above
        reason = _reason(said)
        return Answer(reason if status == 422 and reason in PERMANENT else code, reason or f"HTTP {status}")  # noqa: PLR2004

    async def tell(self, url: str, key: str, notice: Any) -> None:
        """Post a notice to somebody; what is no success is raised, and tried again as an event is."""
        timeout = aiohttp.ClientTimeout(total=self._seconds)
        async with (
            aiohttp.ClientSession(timeout=timeout) as session,
            session.post(url, json=notice, headers={"Idempotency-Key": key}) as response,
        ):
            response.raise_for_status()

    async def close(self) -> None:
        await self._wire.close()


def _reason(said: bytes) -> str:
    try:
        found = json.loads(said)
        return str(found["error"])[:100] if isinstance(found, dict) and "error" in found else ""
    except ValueError:
        return ""
