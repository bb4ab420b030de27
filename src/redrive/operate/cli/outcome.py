"""How a command ends: its exit code, and the one place where an error becomes a sentence.

What we foresaw is said in one sentence on standard error. What we did not is said in one line with its type; the
traceback is for those who ask for it with REDRIVE_DEBUG=1.
"""

import os
import sys
from contextlib import suppress
from enum import IntEnum
from typing import Any, Final

import typer
from typer.core import TyperGroup

from redrive.errors import NotFound, PayloadRefused, RedriveError, Refused, SelectionError
from redrive.event import Event
from redrive.group import Group
from redrive.operate.cli.text import clean, one_line
from redrive.operate.edit import BadEdit
from redrive.operate.views import Ambiguous

INTERRUPTED: Final = 130
_LONGEST_COMPLAINT: Final = 1_000
BROKEN_PIPE: Final = 141  # what a shell reports for a program that SIGPIPE ended


class Code(IntEnum):
    """What the exit code says."""

    DONE = 0
    ERROR = 1
    USAGE = 2
    NOTHING = 3
    REFUSED = 4
    HALTED = 5  # also: `attention --exit-code` has found something to do


class BadInput(RedriveError):
    """An argument cannot be meant like this."""


class NothingMatched(RedriveError):
    """There was something to look for, and it is not there."""


def code_of(error: RedriveError) -> Code:
    """Choose the exit code of an error."""
    if isinstance(error, BadInput | BadEdit | Ambiguous | SelectionError):
        return Code.USAGE
    if isinstance(error, NothingMatched | NotFound):
        return Code.NOTHING
    if isinstance(error, Refused | PayloadRefused):
        return Code.REFUSED
    return Code.ERROR


def say(sentence: str) -> None:
    """Tell the person at the terminal something that is not part of the result."""
    print(clean(sentence), file=sys.stderr)


class Commands(TyperGroup):
    """The root of all commands: whatever they raise ends here."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read what stands before the command."""
        try:
            return super().parse_args(ctx, args)
        except Exception as error:
            _clean_complaint(error)
            raise

    def invoke(self, ctx: Any) -> Any:
        """Run a command; leave with its code."""
        try:
            result = super().invoke(ctx)
            sys.stdout.flush()
        except KeyboardInterrupt:
            raise typer.Exit(INTERRUPTED) from None
        except BrokenPipeError:
            _close_the_pipe()
            raise typer.Exit(BROKEN_PIPE) from None
        except Exception as error:
            # An Abort, an Exit or a complaint of the parser knows its own way out.
            if isinstance(error, typer.Abort) or hasattr(error, "exit_code") or _debugging():
                _clean_complaint(error)
                raise
            raise typer.Exit(_told(error)) from None
        return result


def _clean_complaint(error: Exception) -> None:
    """Have a complaint of the parser show what was typed instead of obeying it, and not all of it."""
    message = getattr(error, "message", None)
    if isinstance(message, str):
        cut = message if len(message) <= _LONGEST_COMPLAINT else message[:_LONGEST_COMPLAINT] + "…"
        error.message = clean(cut)  # type: ignore[attr-defined]


def _told(error: Exception) -> Code:
    """Say what went wrong in one line."""
    while isinstance(error, ExceptionGroup):
        error = error.exceptions[0]
    if isinstance(error, RedriveError):
        say(f"redrive: {error}")
        _list_candidates(error)
        return code_of(error)
    say(
        f"redrive: unexpected {type(error).__name__}: {one_line(str(error), 300)} "
        "(run again with REDRIVE_DEBUG=1 for the traceback)"
    )
    return Code.ERROR


def _debugging() -> bool:
    return os.environ.get("REDRIVE_DEBUG", "") not in ("", "0")


def _list_candidates(error: RedriveError) -> None:
    if isinstance(error, Ambiguous):
        for each in error.candidates:
            if isinstance(each, Event):
                say(f"  {each.id}  {each.type}  {each.status}")
            elif isinstance(each, Group):
                say(f"  {each.fingerprint}  {one_line(each.title, 60)}")
            else:
                say(f"  {each.id}  {each.state}  {one_line(each.sentence, 60)}")


def _close_the_pipe() -> None:
    """Have the interpreter's last flush go nowhere: the reader has left."""
    with suppress(OSError, ValueError):
        broken, nowhere = sys.stdout.fileno(), os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, broken)
        os.close(nowhere)
