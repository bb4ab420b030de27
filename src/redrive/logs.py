"""Logs: facts with a name, to wherever the application sends its own.

An application that has configured structlog gets structlog events. In any other, the standard ``logging`` logger
``redrive`` is used, so that warnings reach standard error and nothing is ever printed to standard output.
"""

import logging
import sys
from collections.abc import Callable
from typing import Any


class Log:
    """One call, one event with its facts."""

    def __init__(self, name: str = "redrive") -> None:
        self.name = name
        self.before_first: Callable[[], None] | None = None  # sets the log up, once there is something to log
        self._plain = logging.getLogger(name)

    def debug(self, event: str, **facts: Any) -> None:
        self._write(logging.DEBUG, event, facts)

    def info(self, event: str, **facts: Any) -> None:
        self._write(logging.INFO, event, facts)

    def warning(self, event: str, **facts: Any) -> None:
        self._write(logging.WARNING, event, facts)

    def error(self, event: str, **facts: Any) -> None:
        self._write(logging.ERROR, event, facts)

    def is_told(self, level: int) -> bool:
        """Whether anybody hears of such a line: asked before one that takes time to make."""
        log.set_up()
        structlog = _structlog()
        if structlog is None:
            return self._plain.isEnabledFor(level)
        bound = structlog.get_logger(self.name).bind()
        asks = getattr(type(bound), "is_enabled_for", None) or getattr(type(bound), "isEnabledFor", None)
        return asks is None or bool(asks(bound, level))

    def _write(self, level: int, event: str, facts: dict[str, Any]) -> None:
        log.set_up()
        structlog = _structlog()
        if structlog is not None:
            getattr(structlog.get_logger(self.name), logging.getLevelName(level).lower())(event, **facts)
        elif self._plain.isEnabledFor(level):
            said = " ".join(f"{name}={value!r}" for name, value in facts.items())
            self._plain.log(level, "%s %s", event, said, extra={"redrive": facts})

    def set_up(self) -> None:
        """Do what is to be done before the first line, once."""
        if self.before_first is not None:
            set_up, self.before_first = self.before_first, None
            set_up()


def _structlog() -> Any:
    structlog = sys.modules.get("structlog")  # who has configured it has imported it; we need not, and start sooner
    return structlog if structlog is not None and structlog.is_configured() else None


log = Log()
alarms = Log("redrive.alarm")
"""The lines that ``alarm`` also reports to Sentry: its own integration of logging is told to leave them alone."""
