"""A small cloud control plane: addresses, volumes and machines, over several services and sites.

    redrive up controlplane

Read ``words``, then ``requests`` (the saga), ``resource`` (what the services have in common), ``addresses``,
``volumes``, ``machines``, and ``wiring``, which puts them together. ``world`` is what they control.
"""

import os
from functools import cache
from typing import Any

__all__ = ["app"]


@cache
def _app() -> Any:
    from redrive.apps.controlplane.wiring import app_from  # noqa: PLC0415 - whoever needs a part need not make the app

    return app_from(os.environ)


def __getattr__(name: str) -> Any:
    if name == "app":
        return _app()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
