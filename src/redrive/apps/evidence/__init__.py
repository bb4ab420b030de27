"""Evidence: files from an uploaded ZIP are attached to their cases, with retries, and two notices when that is told.

``redrive up evidence`` runs it; README.md beside this file says how it works. ``app`` is made from the environment when
it is asked for.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from redrive import Redrive

    app: Redrive

__all__ = ["app"]

_made: dict[str, Any] = {}


def __getattr__(name: str) -> Any:
    if name != "app":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if "app" not in _made:
        from redrive.apps.evidence.build import build  # noqa: PLC0415 - needs extras that only the app itself needs
        from redrive.apps.evidence.settings import Settings  # noqa: PLC0415 - as above

        _made["app"] = build(Settings.from_env()).app
    return _made["app"]
