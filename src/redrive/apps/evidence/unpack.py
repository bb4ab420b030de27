"""Unpack: read an uploaded ZIP that may be anything.

What makes the whole upload unfit (``BadUpload``) is found before any row is written: no ZIP, a bomb, names that lead
elsewhere, no CSV or two of them. What is wrong with one line or one file is that line's or file's own error, and
disturbs no other. Sizes are what was really read, never what the archive says of itself.

Next: ``expand`` writes rows and artifacts.
"""

import csv
import io
import mimetypes
import re
import struct
import unicodedata
import zipfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Final
from uuid import UUID

from redrive.apps.evidence.settings import Limits

CHUNK: Final = 262_144
_RATIO_FLOOR: Final = 16 * 1_048_576  # below this nobody minds how well something packs
_PART: Final = 5_000  # files between two times at which all of them are on disk
_LISTED_BYTES: Final = 256  # of the directory, for each entry that may be there
_ALLOWED: Final = frozenset(
    ("pdf", "png", "jpg", "jpeg", "gif", "tif", "tiff", "txt", "eml", "msg", "doc", "docx", "xls", "xlsx")
)
_MAGIC: Final = {"pdf": b"%PDF-", "png": b"\x89PNG", "jpg": b"\xff\xd8", "jpeg": b"\xff\xd8", "gif": b"GIF8"}
_UNSAFE: Final = re.compile(r"^[/\\]|^[A-Za-z]:|(?:^|[/\\])\.\.(?:[/\\]|$)|[\x00-\x1f\x7f\\]")
_DULL: Final = re.compile(r"[^A-Za-z0-9._-]+")
_KINDS: Final = {0, 0o100000, 0o040000}  # not said, a file, a folder
_BROKEN: Final = (zipfile.BadZipFile, zlib.error, struct.error, EOFError, OSError, ValueError)


class BadUpload(Exception):
    """The upload as a whole cannot be used."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


@dataclass(slots=True)
class File:
    """One file that a line names, as it was found."""

    name: str
    key: str
    size: int | None = None
    error_code: str | None = None
    error_message: str | None = None

    @property
    def type(self) -> str | None:
        return mimetypes.guess_type(self.name)[0]


@dataclass(slots=True)
class Line:
    """One line of the CSV."""

    line: int
    case_id: str | None = None
    files: list[File] = field(default_factory=list)
    error_code: str | None = None
    error_message: str | None = None


def unpack(path: Path, limits: Limits, prefix: str, put: Callable[[str, IO[bytes]], None]) -> Iterator[list[Line]]:
    """Check an upload, then hand each file that a line names to ``put``, and give the lines some at a time.

    ``BadUpload`` comes before any line: what is found later is the error of one file.
    """
    _check_directory(path, limits)
    try:
        with zipfile.ZipFile(path) as archive:
            yield from _Upload(archive, path.stat().st_size, limits, prefix, put).parts()
    except (zipfile.BadZipFile, struct.error, NotImplementedError) as error:
        raise BadUpload("NOT_A_ZIP", f"the upload is not a ZIP that can be read ({error}): send a .zip file") from error


def _check_directory(path: Path, limits: Limits) -> None:
    """Look how large the list of entries is before anything reads it into memory."""
    with path.open("rb") as file:
        end = file.seek(0, io.SEEK_END)
        file.seek(max(0, end - 65_557))
        tail = file.read()
        at = tail.rfind(b"PK\x05\x06")
        if at < 0 or len(tail) < at + 22:
            raise BadUpload("NOT_A_ZIP", "the upload is not a ZIP: send a .zip file, and all of it")
        size = struct.unpack("<L", tail[at + 12 : at + 16])[0]
        locator = tail[at - 20 : at] if at >= 20 else b""  # noqa: PLR2004 - the length of a ZIP64 locator
        if locator.startswith(b"PK\x06\x07"):
            file.seek(min(struct.unpack("<Q", locator[8:16])[0], end))
            record = file.read(56)
            size = struct.unpack("<Q", record[40:48])[0] if len(record) == 56 else end  # noqa: PLR2004 - as above
    if size > limits.entries * _LISTED_BYTES:
        raise BadUpload("TOO_MANY_FILES", f"the ZIP lists more than {limits.entries:,} files: split it")


class _Upload:
    def __init__(
        self, archive: zipfile.ZipFile, size: int, limits: Limits, prefix: str, put: Callable[[str, IO[bytes]], None]
    ) -> None:
        self._archive = archive
        self._limits = limits
        self._most = min(limits.total_bytes, max(_RATIO_FLOOR, size * limits.ratio))
        self._read = 0
        self._prefix = prefix
        self._put = put
        self._entries: dict[str, tuple[int, zipfile.ZipInfo]] = {}
        self._found: dict[str, File] = {}

    def parts(self) -> Iterator[list[Line]]:
        self._check_entries()
        lines = [*_lines(self._table(), self._limits)]
        if not lines:
            raise BadUpload("NO_ROWS", "the CSV has a header and no line below it")
        part: list[Line] = []
        files = 0
        for line in lines:
            line.files = [self._file(each.name) for each in line.files]
            part.append(line)
            files += len(line.files)
            if files >= _PART:
                yield part
                part, files = [], 0
        if part:
            yield part

    def _check_entries(self) -> None:
        limits, said = self._limits, 0
        for number, info in enumerate(self._archive.infolist()):
            name = info.orig_filename
            if _UNSAFE.search(name):
                raise BadUpload("UNSAFE_NAME", f"the ZIP has an entry {name[:200]!r} that leads outside of it")
            if (info.external_attr >> 16) & 0o170000 not in _KINDS and info.create_system == 3:  # noqa: PLR2004 - Unix
                raise BadUpload("UNSAFE_ENTRY", f"the ZIP has an entry {name[:200]!r} that is a link, not a file")
            if info.is_dir() or name.startswith("__MACOSX/") or name.rpartition("/")[2] == ".DS_Store":
                continue
            key = _normal(info.filename)
            if key in self._entries:
                raise BadUpload("DUPLICATE_ENTRY", f"the ZIP has two entries called {name[:200]!r}: rename one")
            self._entries[key] = number, info
            said += info.file_size
        if not self._entries:
            raise BadUpload("EMPTY_ZIP", "there is no file in the ZIP: put a CSV and the files it names into it")
        if len(self._entries) > limits.entries:
            raise BadUpload("TOO_MANY_FILES", f"the ZIP has more than {limits.entries:,} files: split it")
        if said > self._most:
            most = f"{self._most / 1_048_576:,.0f} MB"
            raise BadUpload("ZIP_BOMB", f"unpacked, the ZIP is larger than {most}: split it")

    # The CSV

    def _table(self) -> str:
        tables = [info for name, (_, info) in self._entries.items() if name.lower().endswith(".csv")]
        if not tables:
            raise BadUpload("NO_CSV", "there is no CSV in the ZIP: add one with the columns case_id and files")
        if len(tables) > 1:
            names = ", ".join(sorted(info.filename for info in tables)[:3])
            raise BadUpload("SEVERAL_CSVS", f"there are {len(tables)} CSVs in the ZIP ({names}): leave one")
        (info,) = tables
        if info.flag_bits & 1:
            raise BadUpload("ENCRYPTED", f"{info.filename} is encrypted: send the ZIP without a password")
        sink = io.BytesIO()
        try:
            with self._archive.open(info) as source:
                for chunk in self._chunks(source, self._limits.csv_bytes):
                    sink.write(chunk)
        except (_TooLarge, _Unfit):
            raise BadUpload("CSV_TOO_LARGE", f"{info.filename} is too large: split the upload") from None
        except (*_BROKEN, NotImplementedError, RuntimeError) as error:
            raise BadUpload("CSV_UNREADABLE", f"{info.filename} cannot be unpacked: {error}") from error
        return _text(sink.getvalue(), info.filename)

    # The files

    def _file(self, name: str) -> File:
        """Find what a line names; a file that several lines name is read once."""
        key = _normal(name)
        if key not in self._found:
            self._found[key] = self._extracted(name, key)
        return self._found[key]

    def _extracted(self, name: str, key: str) -> File:
        if key not in self._entries:
            return File(name, f"{self._prefix}/missing", None, "S3_NOT_FOUND", "the CSV names it, the ZIP lacks it")
        number, info = self._entries[key]
        file = File(name, f"{self._prefix}/{number}-{_DULL.sub('_', name.rpartition('/')[2])[-80:]}", info.file_size)
        try:
            file.size = self._shelved(file, info)
        except _Unfit as error:
            file.error_code, file.error_message = error.code, str(error)
        except _TooLarge:
            most = f"{self._limits.entry_bytes / 1_048_576:,.0f} MB"
            file.error_code, file.error_message = "INVALID_FORMAT", f"it is larger than {most}"
        except _Unwritable as error:
            raise error.why from None
        except (*_BROKEN, NotImplementedError, RuntimeError) as error:
            file.error_code, file.error_message = "CORRUPTED_FILE", f"it cannot be unpacked: {str(error)[:200]}"
        return file

    def _shelved(self, file: File, info: zipfile.ZipInfo) -> int:
        """Put a file on the shelf; return its size."""
        ending = file.name.rpartition(".")[2].lower()
        if ending not in _ALLOWED:
            raise _Unfit("INVALID_FORMAT", f"files of this kind (.{ending[:20]}) are not taken")
        if info.flag_bits & 1:
            raise _Unfit("INVALID_FORMAT", "it is encrypted: send the ZIP without a password")
        with self._archive.open(info) as source:
            reader = _Reader(self._chunks(source, self._limits.entry_bytes))
            head = reader.peek()
            if not head:
                raise _Unfit("CORRUPTED_FILE", "it is empty")
            if not head.startswith(_MAGIC.get(ending, b"")):
                raise _Unfit("INVALID_FORMAT", f"its content is not that of a .{ending}")
            self._put(file.key, reader)  # type: ignore[arg-type]
        return reader.size

    def _chunks(self, source: IO[bytes], most: int) -> Iterator[bytes]:
        size = 0
        while chunk := source.read(CHUNK):
            size += len(chunk)
            self._read += len(chunk)
            if self._read > self._most:  # not even then: zipfile gives no more of an entry than the directory says
                raise _Unfit("CORRUPTED_FILE", "there is more in the ZIP than it says")
            if size > most:
                raise _TooLarge
            yield chunk


class _TooLarge(Exception):
    pass


class _Unfit(Exception):
    """This file cannot be taken, whatever is tried."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class _Unwritable(Exception):
    """The object store refused; that is no fault of the file."""

    def __init__(self, why: Exception) -> None:
        super().__init__(str(why))
        self.why = why


class _Reader:
    """Chunks as a file that can be read; keeps count."""

    def __init__(self, chunks: Iterator[bytes]) -> None:
        self._chunks = chunks
        self._head = b""
        self.size = 0

    def peek(self) -> bytes:
        self._head = self._head or next(self._chunks, b"")
        return self._head

    def read(self, _size: int = -1) -> bytes:
        chunk, self._head = self._head or next(self._chunks, b""), b""
        self.size += len(chunk)
        return chunk


def unwritable(error: Exception) -> Exception:
    """Mark an error as one of the object store's, for ``put`` to raise."""
    return _Unwritable(error)


def _normal(name: str) -> str:
    return unicodedata.normalize("NFC", name.strip()).removeprefix("./")


def _text(data: bytes, name: str) -> str:
    """Read a text with or without a byte-order mark. Other encodings are refused: a guess could name other files."""
    encoding = "utf-16" if data[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig"
    try:
        return data.decode(encoding)
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise BadUpload(
            "CSV_ENCODING", f"{name} is not UTF-8 (line {line}, byte 0x{data[error.start]:02x}): save it as UTF-8"
        ) from None


def _lines(text: str, limits: Limits) -> Iterator[Line]:
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    seen: dict[tuple[str, str], int] = {}
    try:
        header = [each.strip().lower() for each in next(reader, [])]
        if "case_id" not in header or "files" not in header:
            raise BadUpload("CSV_HEADER", "the first line of the CSV must name the columns case_id and files")
        for cells in reader:
            if any(cell.strip() for cell in cells):
                yield _line(reader.line_num, header, cells, seen, limits)
    except csv.Error as error:
        raise BadUpload("CSV_UNREADABLE", f"the CSV cannot be read at line {reader.line_num}: {error}") from error


def _line(number: int, header: list[str], cells: list[str], seen: dict[tuple[str, str], int], limits: Limits) -> Line:
    line = Line(number)
    if len(cells) != len(header):
        line.error_code, line.error_message = "MALFORMED", f"it has {len(cells)} columns, and the header {len(header)}"
        return line
    values = dict(zip(header, (cell.strip() for cell in cells), strict=True))
    try:
        line.case_id = str(UUID(values["case_id"]))
    except ValueError:
        line.error_code, line.error_message = "CASE_ID_INVALID", f"{values['case_id'][:100]!r} is not the id of a case"
        return line
    names = [name for each in values["files"].split(";") if (name := each.strip())]
    if not names or len(names) > limits.files_of_a_row:
        line.error_code = "TOO_MANY_FILES" if names else "NO_FILES"
        line.error_message = f"it names {len(names)} files; from 1 to {limits.files_of_a_row} are taken"
        return line
    for name in names:
        first = seen.setdefault((line.case_id, _normal(name)), number)
        if first != number or names.count(name) > 1:
            line.error_code = "DUPLICATE_ROW"
            line.error_message = f"it names {name[:100]!r} for this case again, after line {first}"
            return line
    line.files = [File(name, "") for name in names]
    return line
