"""Sample: a case API of its own and one upload in which everything happens, for a first look.

Three cases: one where all goes well, one whose API stumbles and recovers, one that was deleted; a file that is missing,
one that is corrupt, and a line that is no case. Retries come after seconds instead of minutes.
"""

import asyncio
import io
import threading
import zipfile
from dataclasses import replace
from typing import Final
from uuid import UUID, uuid5

from redrive import Work
from redrive.apps.evidence.desk import RECEIVED, Desk
from redrive.apps.evidence.fake_cases import FakeCases
from redrive.apps.evidence.settings import Settings

_JOB: Final = UUID("019a0000-0000-7000-8000-000000000001")
GOOD: Final = "11111111-1111-4111-8111-111111111111"
SHAKY: Final = "22222222-2222-4222-8222-222222222222"
DELETED: Final = "33333333-3333-4333-8333-333333333333"
_CSV: Final = f"""case_id,files
{GOOD},receipt.pdf;photo.png
{SHAKY},contract.pdf;letter.txt;parcel.jpg
{DELETED},statement.pdf
{GOOD},lost.pdf;broken.pdf
no case,receipt.pdf
"""
_FILES: Final = {
    "receipt.pdf": b"%PDF-1.7 a receipt",
    "photo.png": b"\x89PNG a photo",
    "contract.pdf": b"%PDF-1.7 a contract",
    "letter.txt": b"a letter",
    "parcel.jpg": b"\xff\xd8 a parcel",
    "statement.pdf": b"%PDF-1.7 a statement",
    "broken.pdf": b"this is no PDF",
}


def with_fake_cases(settings: Settings) -> Settings:
    """Start a case API in a thread of its own, for as long as this process lives."""
    cases = FakeCases()
    cases.gone.add(DELETED)
    cases.tell(SHAKY, "503", "lose", "500", "500")
    loop, ports = asyncio.new_event_loop(), []
    started = threading.Event()

    async def serve() -> None:
        ports.append(await cases.start())
        started.set()
        await cases.serve()

    threading.Thread(target=loop.run_until_complete, args=(serve(),), name="evidence-sample", daemon=True).start()
    started.wait()
    return replace(settings, case_url=f"http://127.0.0.1:{ports[0]}")


def archive(table: str = _CSV, files: dict[str, bytes] = _FILES) -> bytes:
    """Pack a ZIP."""
    sink = io.BytesIO()
    with zipfile.ZipFile(sink, "w", zipfile.ZIP_DEFLATED) as packed:
        packed.writestr("evidence.csv", table)
        for name, data in files.items():
            packed.writestr(name, data)
    return sink.getvalue()


def register(desk: Desk) -> None:
    """Have the sample uploaded when the app opens on a database that has it not."""

    @desk.app.when_open
    async def upload(tx: Work) -> None:
        job_id, data = str(_JOB), archive()
        key = f"jobs/{job_id}/source.zip"
        if await desk.tables.ask(tx, "job_add", job_id, "sample.zip", len(data), key, "sample", desk.app.clock.now()):
            await asyncio.to_thread(desk.shelf.put, key, io.BytesIO(data))
            await tx.publish(RECEIVED, {"file_job_id": job_id}, subject=f"file_job/{job_id}", correlation_id=job_id)


def artifact_id(line: int, name: str) -> str:
    """Return the id that an artifact of the sample has."""
    return str(uuid5(uuid5(_JOB, str(line)), name))
