"""Trouble: errors as a model can act on them: what was wrong, and what to call next. Never a traceback."""

import traceback
from typing import Final

from pydantic import ValidationError

from redrive import errors
from redrive.logs import log
from redrive.operate import auth, cursor, views
from redrive.operate.mcp.fence import cut

_LONGEST: Final = 2_000
_MOST_FAULTS: Final = 10
_MOST_LOGGED: Final = 4_000

# The first that fits decides, so the special ones stand before the general ones.
_NEXT: Final[tuple[tuple[type[Exception], str], ...]] = (
    (auth.Forbidden, "Ask a person: your role does not allow it."),
    (cursor.BadCursor, "Begin again without a cursor."),
    (errors.SelectionError, "Correct the selection where the carets point, and call again."),
    (errors.EventNotFound, "Take an id from list_dlq_events."),
    (errors.NotFound, "Take an id from list_failure_groups, or from what plan_redrive has answered."),
    (views.Ambiguous, "Give the whole id."),
    (errors.StoreUnavailable, "Call again in a few seconds; nothing was lost."),
    (errors.ConfigurationError, "Tell a person: this has to be put right where Redrive runs."),
    (errors.NeedsApproval, "Ask a person to approve it; get_redrive tells when they have."),
    (errors.RedriveError, "Look at it again: it may have changed meanwhile."),
)


def told(error: Exception, tool: str) -> str:
    """Say an error in words."""
    if isinstance(error, ValidationError):
        return f"The arguments of {tool} do not fit: {_faults(error)}. Correct them, and call again."
    for kind, advice in _NEXT:
        if isinstance(error, kind):
            return f"{cut(str(error), _LONGEST)}\nNext: {advice}"
    log.error("tool failed", tool=tool, error="".join(traceback.format_exception(error))[-_MOST_LOGGED:])
    return f"Something went wrong in {tool} ({type(error).__name__}). Tell a person: the log of the server says what."


def _faults(error: ValidationError) -> str:
    """Point at what does not fit; never repeat the value."""
    found = error.errors(include_url=False, include_input=False, include_context=False)
    shown = [f"{'.'.join(map(str, each['loc'])) or 'all'}: {each['msg']}" for each in found[:_MOST_FAULTS]]
    return cut("; ".join(shown), _LONGEST)
