"""The web side: what operators do over HTTP. ``redrive_asgi(app)`` is an ASGI app, to be served or mounted."""

from redrive.operate.web.server import Server, check_bind
from redrive.operate.web.site import Proxy, redrive_asgi

__all__ = ["redrive_asgi", "Proxy", "Server", "check_bind"]
