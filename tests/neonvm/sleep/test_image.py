"""The image of a sleeping guest's memory: secret, used once, and useless once it was altered."""

from __future__ import annotations

import asyncio
import os
import socket
import stat
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from deploy.neonvm.sleep.image import NAME, ImageError, SleepImage, delete_leftover
from protocol.units import Bytes

MEMORY = b"a tenant's rows " * 200_000
"""Three chunks, the last of them not full."""


def saved(folder: Path, memory: bytes = MEMORY, limit: int = 0) -> SleepImage:
    """An image of ``memory``."""
    image = SleepImage(folder, Bytes(limit))
    ours, theirs = socket.socketpair()
    with ours, theirs:

        async def write() -> int:
            writing = asyncio.create_task(asyncio.to_thread(_written, image, theirs))
            # A writer that fails hangs up on us.
            with suppress(BrokenPipeError, ConnectionResetError):
                await asyncio.to_thread(ours.sendall, memory)
                ours.shutdown(socket.SHUT_WR)
            return (await writing).value

        assert asyncio.run(write()) == image.path.stat().st_size
    return image


def _written(image: SleepImage, source: socket.socket) -> Bytes:
    with source:
        return image.write(source)


def restored(image: SleepImage) -> bytes:
    """The memory that comes out of ``image``."""
    ours, theirs = socket.socketpair()

    async def read() -> bytes:
        receiving = asyncio.create_task(asyncio.to_thread(_all, ours))
        try:
            with theirs:
                await asyncio.to_thread(image.read_once, theirs)
        finally:
            memory = await receiving
        return memory

    with ours:
        return asyncio.run(read())


def _all(end: socket.socket) -> bytes:
    memory = bytearray()
    while part := end.recv(1 << 20):
        memory += part
    return bytes(memory)


@pytest.mark.parametrize("memory", [b"", b"x", MEMORY, bytes(1 << 20)])
def test_memory_comes_back_whole(memory: bytes, tmp_path: Path) -> None:
    assert restored(saved(tmp_path, memory)) == memory


def test_file_is_secret(tmp_path: Path) -> None:
    """Neither its mode nor its content reveals a tenant's memory, and two images of it differ."""
    first = saved(tmp_path).path.read_bytes()
    assert stat.S_IMODE((tmp_path / NAME).stat().st_mode) == 0o600
    assert b"tenant" not in first
    assert saved(tmp_path).path.read_bytes() != first


def test_image_is_used_once(tmp_path: Path) -> None:
    """Neither the process that has its key can restore it again nor, from a copy, a later one."""
    image = saved(tmp_path)
    copy = image.path.read_bytes()
    restored(image)
    assert not image.path.exists()
    image.path.write_bytes(copy)
    with pytest.raises(ImageError, match="was already used"):
        restored(image)
    with pytest.raises(ImageError, match="corrupt at chunk 0"):
        restored(SleepImage(tmp_path))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=20)
@given(place=st.floats(0, 1, exclude_max=True), bit=st.integers(0, 7))
def test_altered_image_is_refused(place: float, bit: int, tmp_path: Path) -> None:
    """One bit anywhere; whatever was sent before it is noticed, the guest cannot run on it."""
    image = saved(tmp_path)
    content = bytearray(image.path.read_bytes())
    content[int(place * len(content))] ^= 1 << bit
    image.path.write_bytes(content)
    with pytest.raises(ImageError, match="corrupt"):
        restored(image)


@pytest.mark.parametrize("left", [0, 3, 20, 1 << 20, (1 << 20) + 20])
def test_cut_image_is_refused(left: int, tmp_path: Path) -> None:
    """Even between two chunks."""
    image = saved(tmp_path)
    os.truncate(image.path, left)
    with pytest.raises(ImageError, match="truncated"):
        restored(image)


def test_chunks_cannot_be_dropped(tmp_path: Path) -> None:
    image = saved(tmp_path)
    content = image.path.read_bytes()
    first = 4 + int.from_bytes(content[:4], "big")
    image.path.write_bytes(content[first:])
    with pytest.raises(ImageError, match="corrupt at chunk 0"):
        restored(image)


def test_missing_image_is_an_error(tmp_path: Path) -> None:
    image = saved(tmp_path)
    image.path.unlink()
    with pytest.raises(ImageError, match="cannot read the saved memory"):
        restored(image)


def test_full_disk_is_an_error(tmp_path: Path) -> None:
    """Here the folder is missing, which fails in the same way."""
    with pytest.raises(ImageError, match="cannot save the memory"):
        saved(tmp_path / "none")


@pytest.mark.parametrize("free", [0, 14])
def test_image_leaves_room_to_others(free: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other guests write to the same disk, and a kubelet evicts pods before it is full."""
    monkeypatch.setattr(os, "fstatvfs", lambda _: os.statvfs_result((4096, 4096, 100, free, free, 0, 0, 0, 0, 255)))
    with pytest.raises(ImageError, match="less than 15% of the disk free"):
        saved(tmp_path)


def test_pod_keeps_its_storage_limit(tmp_path: Path) -> None:
    """A kubelet evicts a pod that exceeds it, and deletes the disk with it."""
    (tmp_path / "disk.qcow2").write_bytes(b"x" * (4 << 20))
    with pytest.raises(ImageError, match="more than 90% of the pod's limit of ephemeral storage"):
        saved(tmp_path, limit=7 << 20)
    assert restored(saved(tmp_path, limit=9 << 20)) == MEMORY
    SleepImage(tmp_path, Bytes(5 << 20)).check_room()
    with pytest.raises(ImageError, match="more than 90% of the pod's limit of ephemeral storage"):
        SleepImage(tmp_path, Bytes(4 << 20)).check_room()


def test_leftover_is_deleted(tmp_path: Path) -> None:
    saved(tmp_path)
    delete_leftover(tmp_path)
    delete_leftover(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_deleted_image_cannot_be_used(tmp_path: Path) -> None:
    image = saved(tmp_path)
    image.delete()
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(ImageError, match="was already used"):
        restored(image)


class CalledOffImage(SleepImage):
    """Deleted before its thread has opened the file."""

    def _usable(self) -> AESGCM:
        key = super()._usable()
        self.delete()
        return key


def test_aborted_sleep_deletes_its_image(tmp_path: Path) -> None:
    """Its thread may end after its owner."""
    ours, theirs = socket.socketpair()
    with theirs:
        ours.sendall(b"rows")
        ours.close()
        CalledOffImage(tmp_path).write(theirs)
    assert list(tmp_path.iterdir()) == []


def test_image_of_the_next_attempt_stays(tmp_path: Path) -> None:
    """A thread on a slow disk outlives its sleep. If it deleted the file, the next sleep would end in a boot."""
    late, pause = SleepImage(tmp_path), threading.Event()
    ours, theirs = socket.socketpair()
    with ours, theirs, ThreadPoolExecutor() as threads:
        writing = threads.submit(late.write, theirs)
        while not late.path.exists():
            pause.wait(0.001)
        late.delete()
        image = saved(tmp_path)
        ours.shutdown(socket.SHUT_WR)
        writing.result()
    assert restored(image) == MEMORY
