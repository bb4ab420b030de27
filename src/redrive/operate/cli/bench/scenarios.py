"""The list of scenarios."""

from collections.abc import Callable, Coroutine
from typing import Any, Final

from redrive.operate.cli.bench.batch import batch
from redrive.operate.cli.bench.brokers import intake, relay
from redrive.operate.cli.bench.consoles import consoles
from redrive.operate.cli.bench.drain import drain, keys
from redrive.operate.cli.bench.drift import reconcile
from redrive.operate.cli.bench.growth import growth
from redrive.operate.cli.bench.http import http
from redrive.operate.cli.bench.measure import Report, Setup
from redrive.operate.cli.bench.place import Place
from redrive.operate.cli.bench.pressure import backlog, snapshot, storm
from redrive.operate.cli.bench.publish import publish
from redrive.operate.cli.bench.quarantine import beside, quarantine, redrive
from redrive.operate.cli.bench.scarce import reserve, schedules
from redrive.operate.cli.bench.scrape import metrics
from redrive.operate.cli.bench.waiting import idle, latency
from redrive.operate.cli.bench.webhooks import webhooks

SCENARIOS: Final[dict[str, Callable[[Setup, Place], Coroutine[Any, Any, Report]]]] = {
    "drain": drain,
    "keys": keys,
    "batch": batch,
    "publish": publish,
    "http": http,
    "webhooks": webhooks,
    "latency": latency,
    "idle": idle,
    "snapshot": snapshot,
    "backlog": backlog,
    "storm": storm,
    "growth": growth,
    "quarantine": quarantine,
    "redrive": redrive,
    "beside": beside,
    "reserve": reserve,
    "schedules": schedules,
    "reconcile": reconcile,
    "metrics": metrics,
    "consoles": consoles,
    "relay": relay,
    "intake": intake,
}
