"""The file with a sleeping guest's memory, encrypted and authenticated because it belongs to a tenant.

Only this process has the key, and drops it on first use. So no other process can read an image, and none is restored
twice; a file left behind by a crash is deleted unread. An image that is migrated counts as used before the target runs.
"""

from __future__ import annotations

import errno
import os
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO, Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from deploy.neonvm.ports import GuestError
from protocol.units import Bytes

NAME: Final = "asleep.image"
_CHUNK: Final = 1024 * 1024
_LENGTH: Final = 4
"""Bytes of the length prefix of a chunk."""
_NONCE: Final = 12
_TAG: Final = 16
_FREE_PERCENT: Final = 15
"""Percentage of the file system that an image leaves free. With less, kubelets by default evict pods from a disk that
also has the node's container images (``imagefs.available``), and their databases are lost with them.
"""
_LIMIT_PERCENT: Final = 90
"""Percentage of the pod's limit that all its files may take with an image. Above the limit, a kubelet evicts the pod
and deletes its disk.
"""
_BLOCK: Final = 512
"""Bytes; the unit of ``st_blocks``."""
_MORE: Final = b"more"
_LAST: Final = b"last"


class ImageError(GuestError):
    """An image cannot be written or read; the message has the reason."""


class SleepImage:
    """Image of one sleep, in ``folder``, whose files may take ``limit`` bytes (0: unlimited). ``write``, ``read_once``
    and ``send`` block: call them in a thread.
    """

    def __init__(self, folder: Path, limit: Bytes = Bytes(0)) -> None:
        self.path = folder / NAME
        self._limit = limit
        self._key: AESGCM | None = AESGCM(AESGCM.generate_key(128))

    @property
    def is_used(self) -> bool:
        """True once it was read, deleted or lost: it can no longer be restored."""
        return self._key is None or not self.path.exists()

    def check_room(self) -> None:
        """Raise ``ImageError`` if the disk is too full even for a small image."""
        try:
            _check_room(os.statvfs(self.path.parent), self._room())
        except OSError as error:
            raise self._not_saved(error) from error

    def write(self, source: socket.socket) -> Bytes:
        """Write everything read from ``source`` until EOF; return the file's size. Raises ``ImageError``."""
        key = self._usable()
        try:
            self.path.unlink(missing_ok=True)
            # Created with its mode, so that no other user can open it in between.
            descriptor = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            with os.fdopen(descriptor, "wb") as file:
                try:
                    return _sealed_into(file, key, source, self._room())
                finally:
                    # The owner may have given up, and deleted the file before this thread created it.
                    if self._key is None:
                        self._delete_own(descriptor)
        except OSError as error:
            raise self._not_saved(error) from error

    def read_once(self, target: socket.socket) -> None:
        """Write the content to ``target`` and delete the image. Raises ``ImageError``."""
        key = self._usable()
        try:
            with self.path.open("rb") as file:
                # Deleted before a byte is used, so that no failure can lead to a second use.
                self.delete()
                for part in _parts(key, file):
                    target.sendall(part)
        except OSError as error:
            raise ImageError(f"cannot read the saved memory: {error}") from error

    def send(self, target: socket.socket, sent: Callable[[int], None]) -> None:
        """Write the content to ``target`` and report the bytes of each chunk to ``sent``. The image stays; call
        ``delete`` before the target may run. Raises ``ImageError``.
        """
        key = self._usable()
        try:
            with self.path.open("rb") as file:
                for part in _parts(key, file):
                    target.sendall(part)
                    sent(len(part))
        except OSError as error:
            raise ImageError(f"cannot send the saved memory: {error}") from error

    def delete(self) -> None:
        """Drop the key and delete the file."""
        self._key = None
        with suppress(OSError):
            self.path.unlink(missing_ok=True)

    def _room(self) -> int:
        """Bytes that the limit leaves for the image."""
        if not self._limit:
            return sys.maxsize
        used = sum(path.lstat().st_blocks for path in self.path.parent.rglob("*")) * _BLOCK
        return self._limit.value * _LIMIT_PERCENT // 100 - used

    def _not_saved(self, error: OSError) -> ImageError:
        return ImageError(f"cannot save the memory in {self.path.parent}: {error}")

    def _delete_own(self, descriptor: int) -> None:
        # By now the file may belong to the next attempt.
        with suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(descriptor), self.path.stat()):
                self.path.unlink()

    def _usable(self) -> AESGCM:
        if self._key is None:
            raise ImageError("the saved memory was already used")
        return self._key


def delete_leftover(folder: Path) -> None:
    """Delete an image in ``folder`` left by an earlier process; its key is lost."""
    with suppress(OSError):
        (folder / NAME).unlink(missing_ok=True)


def _sealed_into(file: BinaryIO, key: AESGCM, source: socket.socket, room: int) -> Bytes:
    number, chunk = 0, bytearray(_CHUNK)
    while length := _filled(source, chunk):
        _check_room(os.fstatvfs(file.fileno()), room - file.tell())
        _put(file, key.encrypt(_nonce(number), memoryview(chunk)[:length], _MORE))
        number += 1
    # Marks the end: without it a file truncated between chunks would be accepted.
    _put(file, key.encrypt(_nonce(number), b"", _LAST))
    return Bytes(file.tell())


def _filled(source: socket.socket, chunk: bytearray) -> int:
    """Read until ``chunk`` is full or EOF; return the number of bytes."""
    view, length = memoryview(chunk), 0
    while length < len(chunk) and (count := source.recv_into(view[length:])):
        length += count
    return length


def _check_room(stats: os.statvfs_result, room: int) -> None:
    if room < 0:
        reason = f"the files would take more than {_LIMIT_PERCENT}% of the pod's limit of ephemeral storage"
        raise OSError(errno.ENOSPC, reason)
    if stats.f_bavail * 100 < stats.f_blocks * _FREE_PERCENT:
        raise OSError(errno.ENOSPC, f"it would leave less than {_FREE_PERCENT}% of the disk free")


def _put(file: BinaryIO, sealed: bytes) -> None:
    file.write(len(sealed).to_bytes(_LENGTH, "big"))
    file.write(sealed)


def _sealed(file: BinaryIO) -> bytes:
    length = int.from_bytes(file.read(_LENGTH), "big")
    sealed = file.read(length) if _TAG <= length <= _CHUNK + _TAG else b""
    if not sealed or len(sealed) != length:
        raise ImageError("the saved memory is corrupt: truncated")
    return sealed


def _parts(key: AESGCM, file: BinaryIO) -> Iterator[bytes]:
    """Yield the authenticated chunks. Raises ``ImageError``."""
    number = 0
    while part := _opened(key, number, _sealed(file)):
        yield part
        number += 1


def _opened(key: AESGCM, number: int, sealed: bytes) -> bytes:
    """Decrypt a chunk; empty for the end marker."""
    is_last = len(sealed) == _TAG
    try:
        return key.decrypt(_nonce(number), sealed, _LAST if is_last else _MORE)
    except InvalidTag as error:
        raise ImageError(f"the saved memory is corrupt at chunk {number}") from error


def _nonce(number: int) -> bytes:
    # Unique, because each key encrypts one image.
    return number.to_bytes(_NONCE, "big")
