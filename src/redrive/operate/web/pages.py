"""Pages: HTML for people. Everything is escaped, and nothing of a page is inline script or style."""

import gzip
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import parse_qsl, quote

from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape
from starlette.requests import Request
from starlette.responses import HTMLResponse

from redrive.operate.console.assets import ASSETS

API: Final = "/api/"
THEME: Final = "redrive_theme"
_MOST_FIELDS: Final = 100
_PACKED: Final = 5

environment = Environment(
    loader=PackageLoader("redrive.operate.console"),
    autoescape=select_autoescape(default=True, default_for_string=True),
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)


def root(request: Request) -> str:
    """Say where this app is mounted; every link begins with it."""
    return str(request.scope.get("root_path", "")).rstrip("/")


def inner_path(request: Request) -> str:
    """Return the path below the place where this app is mounted."""
    path = str(request.scope["path"])
    return path.removeprefix(root(request)) or "/"


def here(request: Request) -> str:
    """Return the path below that place, and the query."""
    return inner_path(request) + (f"?{request.url.query}" if request.url.query else "")


def wants_page(request: Request) -> bool:
    """Say whether a browser looks for a page here."""
    return not inner_path(request).startswith(API) and "text/html" in request.headers.get("accept", "")


def login_address(request: Request) -> str:
    """Say where to sign in, to come back here afterwards."""
    place = here(request)
    back = f"?next={quote(place, safe='/')}" if request.method == "GET" and place != "/" else ""
    return f"{root(request)}/login{back}"


def safe_next(address: str | None) -> str:
    """Take an address to go on to only when it is a path of ours."""
    if not address or not address.startswith("/") or address.startswith(("//", "/\\")) or "\\" in address:
        return "/"
    return address if address.isprintable() else "/"


async def form(request: Request) -> dict[str, str]:
    """Read the fields of a form; of several with one name the last."""
    body = (await request.body()).decode("utf-8", "replace")
    try:
        return dict(parse_qsl(body, keep_blank_values=True, max_num_fields=_MOST_FIELDS))
    except ValueError:
        return {}


def render(
    request: Request, template: str, status: int = 200, headers: Mapping[str, str] | None = None, **context: Any
) -> HTMLResponse:
    """Draw a page."""
    static = f"{root(request)}/static/{ASSETS.digest}"
    text = environment.get_template(template).render(root=root(request), static=static, theme=theme(request), **context)
    said = {**(headers or {}), "Vary": "Accept-Encoding, Cookie"}
    if "gzip" not in request.headers.get("accept-encoding", ""):
        return HTMLResponse(text, status, said)
    packed = gzip.compress(text.encode("utf-8", "replace"), _PACKED, mtime=0)
    return HTMLResponse(packed, status, {**said, "Content-Encoding": "gzip"})


def theme(request: Request) -> str:
    """Say whether somebody wants it light or dark, whatever the machine says."""
    chosen = request.cookies.get(THEME)
    return chosen if chosen in ("light", "dark") else ""
