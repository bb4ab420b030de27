"""The list of scenarios."""

from collections.abc import Callable, Coroutine
from typing import Any, Final

from redrive.operate.cli.bench.drain import drain, keys
from redrive.operate.cli.bench.growth import growth
from redrive.operate.cli.bench.http import http
from redrive.operate.cli.bench.measure import Report, Setup
from redrive.operate.cli.bench.place import Place
from redrive.operate.cli.bench.pressure import backlog, snapshot, storm
from redrive.operate.cli.bench.publish import publish
from redrive.operate.cli.bench.quarantine import beside, quarantine, redrive
from redrive.operate.cli.bench.waiting import idle, latency

SCENARIOS: Final[dict[str, Callable[[Setup, Place], Coroutine[Any, Any, Report]]]] = {
    "drain": drain,
    "keys": keys,
    "publish": publish,
    "http": http,
    "latency": latency,
    "idle": idle,
    "snapshot": snapshot,
    "backlog": backlog,
    "storm": storm,
    "growth": growth,
    "quarantine": quarantine,
    "redrive": redrive,
    "beside": beside,
}
