"""Webhooks: received, stored, answered, and carried to your code until each is delivered or a dead letter.

Read it in the order of a message: ``front`` takes a request, ``signature`` says whether it is genuine, ``keep`` stores
it once, ``destination`` brings it to your function, your URL or your broker. ``refusal`` is what an operator sees of
the rest, ``settings`` reads the file and the environment, ``system`` puts it together. ``redrive up webhooks`` runs it.
"""

import os
from functools import cache
from pathlib import Path

from redrive import Redrive
from redrive.apps.webhooks.settings import Settings, Source
from redrive.apps.webhooks.system import webhooks

__all__ = ["Settings", "Source", "app", "webhooks"]


def __getattr__(name: str) -> Redrive:
    """Make the app of this process from its environment when somebody asks for it; importing this reads nothing."""
    if name == "app":
        return _app()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


@cache
def _app() -> Redrive:
    return webhooks(Settings.read(os.environ, Path.cwd()))
