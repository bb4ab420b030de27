"""An interpreter that is ready for the commands of all pages."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs.follow import WARM

START_SECONDS = 60.0


@pytest.fixture(scope="session", autouse=True)
def warm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    if sys.platform != "linux":  # then each command starts for itself
        yield
        return
    place, script = tmp_path_factory.mktemp("warm") / "socket", Path(__file__).with_name("warm.py")
    server = subprocess.Popen([sys.executable, str(script), str(place)], env={**os.environ, "PYTHONWARNINGS": "ignore"})
    try:
        until = time.monotonic() + START_SECONDS
        while not place.exists():
            assert server.poll() is None
            assert time.monotonic() < until
            time.sleep(0.02)
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv(WARM, str(place))
            yield
    finally:
        server.kill()
        server.wait()
