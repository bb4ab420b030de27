"""Logs: facts with a name, to wherever the application sends its own.

An application that has configured structlog gets structlog events. In any other, the standard ``logging`` logger
``redrive`` is used, so that warnings reach standard error and nothing is ever printed to standard output.
"""

import logging
from typing import Any

import structlog

_plain = logging.getLogger("redrive")


class Log:
    """One call, one event with its facts."""

    def debug(self, event: str, **facts: Any) -> None:
        self._write(logging.DEBUG, event, facts)

    def info(self, event: str, **facts: Any) -> None:
        self._write(logging.INFO, event, facts)

    def warning(self, event: str, **facts: Any) -> None:
        self._write(logging.WARNING, event, facts)

    def error(self, event: str, **facts: Any) -> None:
        self._write(logging.ERROR, event, facts)

    @staticmethod
    def _write(level: int, event: str, facts: dict[str, Any]) -> None:
        if structlog.is_configured():
            getattr(structlog.get_logger("redrive"), logging.getLevelName(level).lower())(event, **facts)
        elif _plain.isEnabledFor(level):
            said = " ".join(f"{name}={value!r}" for name, value in facts.items())
            _plain.log(level, "%s %s", event, said, extra={"redrive": facts})


log = Log()
