"""Lines of the log that take time to make are made only for somebody."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import structlog

from redrive.logs import log


@pytest.mark.parametrize(
    ("configuration", "told"),
    [
        ({"wrapper_class": structlog.make_filtering_bound_logger(logging.WARNING)}, {logging.WARNING, logging.ERROR}),
        (
            {"wrapper_class": structlog.stdlib.BoundLogger, "logger_factory": structlog.stdlib.LoggerFactory()},
            {logging.ERROR},
        ),
        ({"wrapper_class": structlog.BoundLogger}, {logging.INFO, logging.WARNING, logging.ERROR}),  # it cannot say
    ],
)
def test_whoever_has_configured_structlog_is_asked_what_he_hears(configuration: Any, told: set[int]) -> None:
    logging.getLogger("redrive").setLevel(logging.ERROR)
    try:
        structlog.configure(**configuration)

        assert {level for level in (logging.INFO, logging.WARNING, logging.ERROR) if log.is_told(level)} == told
    finally:
        logging.getLogger("redrive").setLevel(logging.NOTSET)


def test_without_structlog_the_standard_logger_is_asked(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, logger="redrive")

    assert not log.is_told(logging.INFO)
    assert log.is_told(logging.WARNING)
