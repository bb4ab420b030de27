"""`redrive bench` in a source checkout: with a private PostgreSQL, NATS and Kafka, those that the tests start.

    python bench/run.py drain --store postgres --repeat 3      one scenario
    python bench/run.py all --repeat 3 --peers --write         everything, into bench/results.md and README.md

All arguments but `--write` go to `redrive bench`. `--write` puts the tables of this run in the place of those of the
last one: nothing of an older run stays. It refuses a checkout that has been changed since its commit.
"""

import contextlib
import io
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(Path(__file__).parent)]

import tabulate  # noqa: E402 - beside this file

from redrive.operate.cli.bench.commands import bench  # noqa: E402 - as above

SYNCED = {"shared_buffers": "512MB", "max_wal_size": "4GB"}
"""Settings of PostgreSQL; all others are its defaults, so each commit reaches the disk."""
BROKERED = {"all", "relay", "intake"}


@contextmanager
def private_postgres() -> Iterator[str]:
    """Run a PostgreSQL that syncs to disk."""
    from tests.servers import running_postgres  # noqa: PLC0415 - only who needs one has to have what it takes

    with running_postgres(16, SYNCED) as server:
        yield server.url


@contextmanager
def private_broker(kind: str) -> Iterator[tuple[str, str]]:
    """Run a broker; say how its address is told to `redrive bench`."""
    if kind == "kafka":
        from tests.kafka_server import running_kafka  # noqa: PLC0415 - as above

        with running_kafka(warm=True) as kafka:
            yield "REDRIVE_TEST_KAFKA", kafka.bootstrap
    else:
        from tests.servers import running_nats  # noqa: PLC0415 - as above

        with running_nats() as nats:
            yield "REDRIVE_TEST_NATS", nats.url


def said(words: list[str], option: str, default: str = "") -> str:
    """Find what an option was given."""
    for place, word in enumerate(words):
        if word == option and place + 1 < len(words):
            return words[place + 1]
        if word.startswith(f"{option}="):
            return word.partition("=")[2]
    return default


def measure(words: list[str]) -> int:
    """Start what is needed and was not named, and run `redrive bench`."""
    with ExitStack() as stack:
        if not {"--help", "--url"} & set(words) and said(words, "--store") != "sqlite" and words:
            words = [*words, "--url", stack.enter_context(private_postgres())]
        kind = said(words, "--broker", "nats")
        if words and words[0] in BROKERED and f"REDRIVE_TEST_{kind.upper()}" not in os.environ:
            name, address = stack.enter_context(private_broker(kind))
            os.environ[name] = address
        try:
            bench(words, prog_name="redrive bench")
        except SystemExit as ended:
            return int(ended.code or 0)
    return 0


def write(words: list[str]) -> int:
    """Measure, then write the tables and the sentence of the README."""
    look = ["git", "-C", str(ROOT), "status", "--porcelain", "--untracked-files=no"]
    changed = subprocess.run(look, capture_output=True, text=True, check=True).stdout  # noqa: S603 - no word from outside
    if changed:
        print("figures belong to a commit: commit first, then measure. Changed:\n" + changed, file=sys.stderr)
        return 1
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        code = measure([*words, "--json"])
    if not printed.getvalue():
        return code or 1
    found = json.loads(printed.getvalue())
    reports = found if isinstance(found, list) else [found]
    (ROOT / "bench" / "results.md").write_text(tabulate.page(reports), encoding="utf-8")
    tabulate.into_readme(ROOT / "README.md", reports)
    print("written: bench/results.md, README.md")
    return code  # 1: a scenario had no figure, and the page says so


if __name__ == "__main__":
    given = sys.argv[1:]
    sys.exit(write([word for word in given if word != "--write"]) if "--write" in given else measure(given))
