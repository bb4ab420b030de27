"""Tables: the control plane's own, beside the events they are written with."""

from pathlib import Path
from typing import Final

from redrive import Redrive, Work

_HERE: Final = Path(__file__).parent


class Sql:
    """Statements for both databases: written for PostgreSQL, said in the words of SQLite where that is the store."""

    def __init__(self, app: Redrive) -> None:
        self._is_postgres = app.dialect == "postgres"

    def __call__(self, text: str) -> str:
        if self._is_postgres:
            return text
        # One writer at a time has the whole file: there is nothing to lock.
        return text.replace("controlplane.", "controlplane_").replace("$", "?").replace(" for update", "")


async def make_tables(app: Redrive, tx: Work) -> None:
    """Make the tables that are not there."""
    text = (_HERE / f"{app.dialect}.sql").read_text(encoding="utf-8")
    lines = [line for line in text.splitlines() if not line.startswith("--")]
    for statement in "\n".join(lines).split(";"):
        await tx.execute(statement)
