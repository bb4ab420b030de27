"""The record of a run: what was tried, which faults were made, what was found; ``docs/promises.md`` is made of it."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections import Counter
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

ROOT = Path(__file__).parents[2]
RUNS = Path(os.environ.get("REDRIVE_LAB_RUNS", ROOT / ".lab" / "runs.jsonl"))


@dataclass(slots=True)
class Record:
    """One run of one kind of experiment."""

    kind: str
    store: str = "sqlite"
    seed: int | None = None
    cases: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    reached: Counter[str] = field(default_factory=Counter)
    violations: Counter[str] = field(default_factory=Counter)
    figures: dict[str, float] = field(default_factory=dict)
    promises: tuple[str, ...] = ()
    test: str = ""
    is_long: bool = False
    began: float = field(default_factory=time.monotonic)

    def write(self) -> None:
        """Append it to the runs of this checkout."""
        RUNS.parent.mkdir(parents=True, exist_ok=True)
        line = json.dumps({
            "kind": self.kind, "store": self.store, "test": self.test, "promises": self.promises,
            "form": "long" if self.is_long else "short", "seed": self.seed, "cases": self.cases,
            "faults": dict(self.faults), "reached": dict(self.reached), "violations": dict(self.violations),
            "figures": self.figures, "seconds": round(time.monotonic() - self.began, 1),
            "date": datetime.now(UTC).date().isoformat(), "commit": _commit(),
        })  # fmt: skip
        with RUNS.open("a", encoding="utf-8") as file:
            file.write(line + "\n")


def _commit() -> str:
    try:
        asked = subprocess.run(
            ["git", "describe", "--always", "--dirty=+", "--abbrev=7"],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=True,
        )
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return asked.stdout.strip()
