"""Peers: other libraries with the same no-op work, each in a process of its own.

Their scripts lie in ``bench/peers`` of the source checkout. They are no requirement of redrive: `make bench` installs
those in Python; those in Node are installed by npm into a temporary folder when node and npm are there.
"""

import asyncio
import atexit
import json
import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

from redrive.operate.cli.bench.measure import BenchFailed, Report
from redrive.operate.cli.bench.place import ROOT, Place

PYTHON: Final = os.environ.get("REDRIVE_PEERS_PYTHON", sys.executable)
_SCRIPTS: Final = ROOT / "bench" / "peers"
_SECONDS: Final = 600


@dataclass(frozen=True, slots=True)
class Peer:
    """A library to be measured beside redrive."""

    name: str
    key: str
    store: str
    script: str
    wanted: float  # how many times as fast redrive is to be
    in_node: bool = False
    share: float = 1.0  # of the events, for one so slow that a minute's work tells as much

    def missing(self) -> str | None:
        """Say why it cannot be measured here."""
        if not (_SCRIPTS / self.script).exists():
            return f"{self.name} not measured: its script is in a source checkout only"
        if self.in_node:
            return None if _node_modules() else f"{self.name} not measured: node and npm are needed, and their registry"
        if _importable(self.key):
            return None
        return f"{self.name} not measured: `make bench` installs it"

    async def drain(self, place: Place, events: int, processes: int) -> float:
        """Let it do the same number of no-ops; return events a second."""
        events = max(1, int(events * self.share))
        async with place.fresh() as url:
            order = json.dumps({"url": url, "events": events, "processes": processes})
            process = await asyncio.create_subprocess_exec(
                *self._command(), order, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
            )
            try:
                async with asyncio.timeout(_SECONDS):
                    output, errors = await process.communicate()
            finally:
                if process.returncode is None:
                    process.kill()
                    await process.communicate()
        if process.returncode:
            raise BenchFailed(f"{self.name} ended with {process.returncode}: {errors.decode()[-2000:]}")
        found = json.loads(output.decode().splitlines()[-1])
        if found["count"] != events:
            raise BenchFailed(f"{self.name} processed {found['count']} of {events}")
        return float(found["count"] / found["seconds"])

    def _command(self) -> list[str]:
        folder = _node_modules() if self.in_node else None
        return [PYTHON, str(_SCRIPTS / self.script)] if folder is None else ["node", str(folder / self.script)]


PEERS: Final = (
    Peer("pgqueuer", "pgqueuer", "postgres", "pgqueuer_drain.py", 2.0),
    Peer("pg-boss", "pg_boss", "postgres", "node/pg_boss_drain.mjs", 1.0, in_node=True),
    Peer("graphile-worker", "graphile_worker", "postgres", "node/graphile_worker_drain.mjs", 1.0, in_node=True),
    Peer("huey", "huey", "sqlite", "huey_drain.py", 5.0, share=0.1),
)


def present(store: str, report: Report) -> list[Peer]:
    """List the peers that can be measured here; the report says which cannot, and why."""
    chosen = []
    for peer in PEERS:
        if peer.store != store:
            continue
        if reason := peer.missing():
            report.notes.append(reason)
        else:
            chosen.append(peer)
    return chosen


@cache
def _importable(module: str) -> bool:
    code = f"import importlib.util as u, sys; sys.exit(u.find_spec({module!r}) is None)"
    return subprocess.run([PYTHON, "-c", code], check=False, capture_output=True).returncode == 0  # noqa: S603


@cache
def _node_modules() -> Path | None:
    """Install the peers in Node into a temporary folder, once a run; ``None`` when that cannot be done here."""
    npm = shutil.which("npm")
    if npm is None or shutil.which("node") is None:
        return None
    folder = Path(tempfile.mkdtemp(prefix="redrive-bench-node-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    shutil.copytree(_SCRIPTS / "node", folder / "node")
    command = [npm, "install", "--no-audit", "--no-fund", "--no-package-lock", "--silent"]
    try:
        subprocess.run(command, cwd=folder / "node", check=True, capture_output=True, timeout=_SECONDS)  # noqa: S603
    except subprocess.SubprocessError:
        return None
    return folder
