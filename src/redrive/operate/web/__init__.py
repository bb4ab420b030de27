"""The web side: what operators do over HTTP. ``redrive_asgi(app)`` is an ASGI app, to be served or mounted."""

from redrive.operate.web.site import Proxy, redrive_asgi

__all__ = ["Proxy", "redrive_asgi"]
