"""Assets: the style and the scripts of the console, from memory.

Their address holds a digest of all of them, so that a browser may keep them for ever and never mixes two releases.
"""

import gzip
import hashlib
from collections.abc import Mapping
from importlib import resources
from typing import Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

_KINDS: Final = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
_FOR_EVER: Final = "public, max-age=31536000, immutable"


def _files() -> dict[str, bytes]:
    folder = resources.files("redrive.operate.console") / "static"
    found = (each for each in folder.iterdir() if each.name[each.name.rfind(".") :] in _KINDS)
    return {each.name: each.read_bytes() for each in sorted(found, key=lambda each: each.name)}


def _digest(files: Mapping[str, bytes]) -> str:
    whole = hashlib.sha256()
    for name, content in files.items():
        whole.update(f"{name}:{len(content)}:".encode() + content)
    return whole.hexdigest()[:12]


class Assets:
    """An ASGI app that answers ``/<digest>/<name>``."""

    def __init__(self) -> None:
        self._plain = _files()
        self._packed = {name: gzip.compress(content, 9, mtime=0) for name, content in self._plain.items()}
        self.digest = _digest(self._plain)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        answer = self._answer(Request(scope)) if scope["type"] == "http" else Response(status_code=404)
        await answer(scope, receive, send)

    def _answer(self, request: Request) -> Response:
        digest, _, name = str(request.scope["path"]).rpartition("/")
        if name not in self._plain or request.method not in ("GET", "HEAD"):
            return Response("There is nothing here.\n", 404, media_type="text/plain")
        headers = {"Vary": "Accept-Encoding"}
        if digest.endswith(f"/{self.digest}"):
            headers["Cache-Control"] = _FOR_EVER
        content = self._plain[name]
        if "gzip" in request.headers.get("accept-encoding", ""):
            content, headers["Content-Encoding"] = self._packed[name], "gzip"
        return Response(content, 200, headers, _KINDS[name[name.rfind(".") :]])


ASSETS: Final = Assets()
