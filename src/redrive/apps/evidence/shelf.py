"""Shelf: where the bytes are, a folder or a bucket that speaks the API of S3.

A key is the same in both. What is not there is ``None`` when fetched: the artifact's own error, not an outage.
``s3://bucket/prefix`` needs obstore (``pip install 'redrive[s3]'``): one wheel without dependencies, where s3fs brings
aiobotocore and botocore along. A folder needs nothing.
"""

import asyncio
import os
import shutil
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path
from tempfile import NamedTemporaryFile, TemporaryDirectory
from typing import IO, Any, Final, Protocol

from redrive import ConfigurationError, DependencyUnavailable
from redrive.apps.evidence.unpack import CHUNK, unwritable

_AT_ONCE: Final = 8

Content = bytes | Callable[[], AsyncIterator[bytes]]
"""A file's bytes, or for a large one a function that gives them piece by piece."""

SMALL: Final = 1_048_576
"""What is not larger is read at once."""


class Shelf(Protocol):
    """Puts files away and finds them again."""

    def put(self, key: str, source: IO[bytes]) -> None: ...
    def settle(self) -> None: ...
    async def fetch(self, keys: Sequence[str]) -> list[tuple[int, Content] | None]: ...
    def local(self, key: str) -> Any: ...


def shelf_for(place: str) -> Shelf:
    """Choose by the place: ``s3://bucket/prefix``, or a folder."""
    if place.startswith("s3://"):
        return Bucket(place)
    if "://" in place:
        raise ConfigurationError(f"EVIDENCE_OBJECTS={place!r} is neither a folder nor s3://bucket/prefix")
    return Folder(Path(place))


class Folder:
    """A folder of this machine, or one that all workers share."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._parts = count()

    def put(self, key: str, source: IO[bytes]) -> None:
        """Write a file whole or not at all."""
        path = f"{self._root}/{key}"
        part = f"{path}.{os.getpid()}-{next(self._parts)}.part"
        try:
            sink = self._opened(part)
        except OSError as error:
            raise unwritable(error) from error
        try:
            with sink:
                while chunk := source.read(CHUNK):
                    _write(sink, chunk)
            os.replace(part, path)  # noqa: PTH105 - a path takes half as long as the file
        except BaseException:
            Path(part).unlink(missing_ok=True)
            raise

    @staticmethod
    def _opened(part: str) -> IO[bytes]:
        try:
            return open(part, "xb")  # noqa: PTH123 - as above; closed by who asked
        except FileNotFoundError:
            Path(part).parent.mkdir(parents=True, exist_ok=True)
            return open(part, "xb")  # noqa: PTH123

    def settle(self) -> None:
        """Have everything on disk, before a commit says that it is there: once, and not for each file."""
        os.sync()

    async def fetch(self, keys: Sequence[str]) -> list[tuple[int, Content] | None]:
        """Read some files in one go: a thread costs more than a small file."""
        return await asyncio.to_thread(lambda: [self._read(key) for key in keys])

    def _read(self, key: str) -> tuple[int, Content] | None:
        path = f"{self._root}/{key}"
        try:
            with open(path, "rb", buffering=0) as file:  # noqa: PTH123 - a path takes half as long as the file
                size = os.fstat(file.fileno()).st_size
                return size, file.readall() if size <= SMALL else lambda: _pieces(Path(path))
        except (FileNotFoundError, IsADirectoryError, NotADirectoryError):
            return None

    @asynccontextmanager
    async def local(self, key: str) -> AsyncIterator[Path]:
        """Lend a file as a path."""
        yield self._root / key


def _write(sink: Any, chunk: bytes) -> None:
    try:
        sink.write(chunk)
    except OSError as error:
        raise unwritable(error) from error


async def _pieces(path: Path) -> AsyncIterator[bytes]:
    file = await asyncio.to_thread(path.open, "rb")
    try:
        while chunk := await asyncio.to_thread(file.read, CHUNK):
            yield chunk
    finally:
        file.close()


class Bucket:
    """A bucket; credentials and endpoint come from AWS_… variables."""

    def __init__(self, url: str, **options: Any) -> None:
        try:
            from obstore.store import S3Store  # noqa: PLC0415 - an extra, imported when it is asked for
        except ModuleNotFoundError as error:
            raise ConfigurationError("s3:// needs obstore: pip install 'redrive[s3]'") from error
        try:
            self._store: Any = S3Store.from_url(url, **options)
        except Exception as error:
            raise ConfigurationError(f"EVIDENCE_OBJECTS={url!r} cannot be used: {error}") from error

    def put(self, key: str, source: IO[bytes]) -> None:
        with NamedTemporaryFile() as whole:  # what fails half way must not be half there
            shutil.copyfileobj(source, whole, CHUNK)
            whole.seek(0)
            try:
                self._store.put(key, whole)
            except Exception as error:
                raise unwritable(error) from error

    def settle(self) -> None:
        """Do nothing: what a bucket has acknowledged is there."""

    async def fetch(self, keys: Sequence[str]) -> list[tuple[int, Content] | None]:
        turn = asyncio.Semaphore(_AT_ONCE)

        async def one(key: str) -> tuple[int, Content] | None:
            async with turn:
                return await self._fetch(key)

        return [*await asyncio.gather(*map(one, keys))]

    async def _fetch(self, key: str) -> tuple[int, Content] | None:
        try:
            got = await self._store.get_async(key)
        except FileNotFoundError:
            return None
        except Exception as error:
            raise DependencyUnavailable("object-store", str(error)[:300]) from error
        size = got.meta["size"]
        if size <= SMALL:
            return size, bytes(await got.bytes_async())

        async def pieces() -> AsyncIterator[bytes]:
            async for piece in (await self._store.get_async(key)).stream():
                yield bytes(piece)

        return size, pieces

    @asynccontextmanager
    async def local(self, key: str) -> AsyncIterator[Path]:
        with TemporaryDirectory() as folder:
            path = Path(folder) / "upload.zip"
            got = await self._store.get_async(key)
            with path.open("wb") as sink:
                async for piece in got.stream():
                    sink.write(bytes(piece))
            yield path
