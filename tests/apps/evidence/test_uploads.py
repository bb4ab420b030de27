"""Uploads that are not what they should be: each has a clear answer, and disturbs nothing else."""

from __future__ import annotations

import io
import struct
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import IO

import pytest

from redrive.apps.evidence.settings import Limits
from redrive.apps.evidence.unpack import BadUpload, Line, unpack
from tests.apps.evidence.conftest import PDF, Bench, case, packed, upload_of

CASE = "11111111-1111-4111-8111-111111111111"
TABLE = f"case_id,files\n{CASE},a.pdf\n"
SMALL = Limits(total_bytes=1_000_000, entry_bytes=200_000, entries=10, ratio=50)


def unpacked(data: bytes, folder: Path, limits: Limits = SMALL) -> tuple[list[Line], dict[str, bytes]]:
    path = folder / "upload.zip"
    path.write_bytes(data)
    kept: dict[str, bytes] = {}

    def put(key: str, source: IO[bytes]) -> None:
        body = b""
        while chunk := source.read(4_096):
            body += chunk
        kept[key] = body

    return [line for part in unpack(path, limits, "p", put) for line in part], kept


def with_link() -> bytes:
    sink = io.BytesIO()
    with zipfile.ZipFile(sink, "w") as archive:
        archive.writestr("evidence.csv", TABLE)
        link = zipfile.ZipInfo("a.pdf")
        link.create_system, link.external_attr = 3, 0o120777 << 16
        archive.writestr(link, "/etc/passwd")
    return sink.getvalue()


def twice() -> bytes:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return packed(TABLE, [("a.pdf", PDF), ("a.pdf", b"%PDF other")])


def encrypted(data: bytes, name: bytes) -> bytes:
    """Set the bit that says so, in the entry and in the directory."""
    body = bytearray(data)
    for mark, flags, length in ((b"PK\x03\x04", 6, 30), (b"PK\x01\x02", 8, 46)):
        at = -1
        while (at := body.find(mark, at + 1)) >= 0:
            if body[at + length : at + length + len(name)] == name:
                body[at + flags] |= 1
    return bytes(body)


def lying_about_sizes() -> bytes:
    """Say that a bomb unpacks to almost nothing."""
    data = bytearray(packed(TABLE, {"a.pdf": PDF + bytes(5_000_000)}))
    true = struct.pack("<L", len(PDF) + 5_000_000)
    return bytes(data).replace(true, struct.pack("<L", 100))


BAD: dict[str, tuple[str, Callable[[], bytes]]] = {
    "text": ("NOT_A_ZIP", lambda: b"hello"),
    "cut": ("NOT_A_ZIP", lambda: packed(TABLE, {"a.pdf": PDF})[:-30]),
    "empty": ("EMPTY_ZIP", lambda: packed(None, {})),
    "folders only": ("EMPTY_ZIP", lambda: packed(None, {"folder/": b""})),
    "no csv": ("NO_CSV", lambda: packed(None, {"a.pdf": PDF})),
    "two csvs": ("SEVERAL_CSVS", lambda: packed(TABLE, {"more.csv": TABLE.encode()})),
    "climbs": ("UNSAFE_NAME", lambda: packed(TABLE, {"../../etc/cron.d/x": PDF})),
    "climbs on windows": ("UNSAFE_NAME", lambda: packed(TABLE, {"..\\x.pdf": PDF})),
    "absolute": ("UNSAFE_NAME", lambda: packed(TABLE, {"/etc/passwd": PDF})),
    "drive": ("UNSAFE_NAME", lambda: packed(TABLE, {"C:evil.pdf": PDF})),
    "link": ("UNSAFE_ENTRY", with_link),
    "two of a name": ("DUPLICATE_ENTRY", twice),
    "too many": ("TOO_MANY_FILES", lambda: packed(TABLE, {f"{n}.pdf": PDF for n in range(20)})),
    "bomb": ("ZIP_BOMB", lambda: packed(TABLE, {f"{n}.pdf": PDF + bytes(190_000) for n in range(8)})),
    "encrypted csv": ("ENCRYPTED", lambda: encrypted(packed(TABLE, {"a.pdf": PDF}), b"evidence.csv")),
    "latin-1": ("CSV_ENCODING", lambda: packed(f"case_id,files\n{CASE},caf\u00e9.pdf\n".encode("latin-1"), {})),
    "no header": ("CSV_HEADER", lambda: packed(f"{CASE},a.pdf\n", {"a.pdf": PDF})),
    "no lines": ("NO_ROWS", lambda: packed("case_id,files\n", {"a.pdf": PDF})),
    "open quote": ("CSV_UNREADABLE", lambda: packed(f'case_id,files\n{CASE},"a.pdf\n', {"a.pdf": PDF})),
}


@pytest.mark.parametrize("name", BAD)
def test_an_upload_that_cannot_be_used_is_refused_with_a_reason(name: str, tmp_path: Path) -> None:
    code, make = BAD[name]

    with pytest.raises(BadUpload) as refused:
        unpacked(make(), tmp_path)

    assert refused.value.code == code
    assert len(str(refused.value)) > 20


def test_what_the_archive_says_of_its_sizes_is_not_believed(tmp_path: Path) -> None:
    lines, kept = unpacked(lying_about_sizes(), tmp_path)

    assert lines[0].files[0].error_code in ("CORRUPTED_FILE", "INVALID_FORMAT")
    assert sum(map(len, kept.values())) < SMALL.total_bytes


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_a_byte_order_mark_is_understood(encoding: str, tmp_path: Path) -> None:
    table = f"case_id,files\r\n{CASE},caf\u00e9.pdf\r\n".encode(encoding)

    lines, kept = unpacked(packed(table, {"caf\u00e9.pdf": PDF}), tmp_path)

    assert [(file.name, file.error_code) for file in lines[0].files] == [("caf\u00e9.pdf", None)]
    assert [*kept.values()] == [PDF]


@pytest.mark.parametrize(
    ("line", "code"),
    [
        ("not-a-case,a.pdf", "CASE_ID_INVALID"),
        (f"{CASE},", "NO_FILES"),
        (f"{CASE},a.pdf,more", "MALFORMED"),
        (f"{CASE},{';'.join(f'{n}.pdf' for n in range(300))}", "TOO_MANY_FILES"),
        (f"{CASE},first.pdf", "DUPLICATE_ROW"),
        (f"{CASE},b.pdf;b.pdf", "DUPLICATE_ROW"),
    ],
)
def test_a_bad_line_is_that_lines_error(line: str, code: str, tmp_path: Path) -> None:
    table = f"case_id,files\n{CASE},first.pdf\n{line}\n{CASE},last.pdf\n"

    lines, _ = unpacked(packed(table, {f"{name}.pdf": PDF for name in ("a", "b", "first", "last")}), tmp_path)

    assert [each.error_code for each in lines] == [None, code, None]
    assert lines[1].line == 3
    assert lines[1].error_message


@pytest.mark.parametrize(
    ("name", "data", "code"),
    [
        ("missing.pdf", None, "S3_NOT_FOUND"),
        ("empty.pdf", b"", "CORRUPTED_FILE"),
        ("program.exe", b"MZ", "INVALID_FORMAT"),
        ("fake.png", b"not a picture", "INVALID_FORMAT"),
        ("large.txt", bytes(300_000), "INVALID_FORMAT"),
    ],
)
def test_a_bad_file_is_that_files_error(name: str, data: bytes | None, code: str, tmp_path: Path) -> None:
    table = f"case_id,files\n{CASE},good.pdf;{name}\n"
    files = {"good.pdf": PDF} | ({} if data is None else {name: data})

    ((line,), kept) = unpacked(packed(table, files), tmp_path)

    assert [file.error_code for file in line.files] == [None, code]
    assert len(kept) == 1 or name == "large.txt"


def test_an_encrypted_or_damaged_file_is_that_files_error(tmp_path: Path) -> None:
    data = packed(f"case_id,files\n{CASE},a.pdf;b.pdf;c.pdf\n", {"a.pdf": PDF, "b.pdf": PDF * 50, "c.pdf": PDF})
    at = data.index(b"b.pdf") + 8
    damaged = encrypted(data[:at] + b"\xff\xff\xff" + data[at + 3 :], b"a.pdf")

    ((line,), _) = unpacked(damaged, tmp_path)

    assert [file.error_code for file in line.files] == ["INVALID_FORMAT", "CORRUPTED_FILE", None]


def test_a_directory_larger_than_the_files_it_may_list_is_not_read(tmp_path: Path) -> None:
    data = bytearray(packed(TABLE, {"a.pdf": PDF}))
    at = data.rfind(b"PK\x05\x06")
    data[at + 12 : at + 16] = struct.pack("<L", 1_000_000)

    with pytest.raises(BadUpload, match="lists more than"):
        unpacked(bytes(data), tmp_path)


async def test_a_refused_upload_is_seen_by_an_operator_and_the_next_one_goes_through(bench: Bench) -> None:
    refused = await bench.add(packed(None, {"a.pdf": PDF}))
    good = await bench.add(upload_of((case(), ["a.pdf"])))

    job = await bench.job(refused)
    assert (job["status"], job["error_code"]) == ("FAILED_VALIDATION", "NO_CSV")
    assert "case_id and files" in job["error_message"]
    assert (await bench.job(good))["status"] == "COMPLETED"
    assert len(await bench.h.events("EVIDENCE_FILE_REFUSED")) == 1
    assert await bench.h.dead_letters() == []


async def test_bad_lines_and_files_are_told_and_the_rest_is_attached(bench: Bench) -> None:
    table = f"case_id,files\n{CASE},a.pdf;gone.pdf\nnobody,a.pdf\n{CASE},a.pdf\n{case()},virus.exe\n"

    job_id = await bench.add(packed(table, {"a.pdf": PDF, "virus.exe": b"MZ"}))

    job = await bench.job(job_id)
    assert [row["evidence_status"] for row in job["rows"]] == ["PARTIALLY_FAILED", "FAILED", "FAILED", "FAILED"]
    assert [row["row_error_code"] for row in job["rows"]] == [None, "CASE_ID_INVALID", "DUPLICATE_ROW", None]
    assert len(bench.cases.attached) == 1
    (n2,) = await bench.h.events("EVIDENCE_N2")
    assert (n2.payload["total"], n2.payload["attached"], n2.payload["permanent_failed"]) == (3, 1, 2)
    assert [row["line"] for row in n2.payload["refused_rows"]] == [3, 4]


async def test_a_job_with_nothing_to_attach_has_both_notices(bench: Bench) -> None:
    await bench.add(packed("case_id,files\nnobody,a.pdf\n", {"a.pdf": PDF}))

    (n1,), (n2,) = await bench.h.events("EVIDENCE_N1"), await bench.h.events("EVIDENCE_N2")
    assert (n1.payload["total"], n2.payload["total"]) == (0, 0)


async def test_expanding_goes_on_where_it_was_broken_off(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    from redrive.apps.evidence import expand

    monkeypatch.setattr(expand, "_AT_ONCE", 2)
    write, struck = expand._write, []

    async def strike(*arguments: object) -> None:
        struck.append(1)
        if len(struck) == 2:
            raise ConnectionError("killed between two batches")
        await write(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(expand, "_write", strike)
    job_id = await bench.add(upload_of(*((case(), [f"{n}.pdf"]) for n in range(5))))
    await bench.h.advance("1m")

    job = await bench.job(job_id)
    assert (job["status"], len(job["rows"])) == ("COMPLETED", 5)
    assert {*bench.cases.attached.values()} == {1}
    assert len(await bench.h.events("EVIDENCE_ATTACH")) == 5
