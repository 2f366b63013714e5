"""Handing taps to pods: only the pod that owns a directory gets the tap that is handed out there."""

from __future__ import annotations

import asyncio
import os
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from deploy.neonvm.overlay.taps import TapSockets, send_tap
from deploy.neonvm.ports import NetworkError
from deploy.neonvm.runner.flat_tap import SOCKET, TapOffer, receive_tap


@pytest.fixture
def root() -> Iterator[Path]:
    """A short path, because a socket's path has at most 107 bytes."""
    with tempfile.TemporaryDirectory() as made:
        yield Path(made)


class Program:
    """Hands out a file to every caller that ``holders`` allow."""

    def __init__(self) -> None:
        self.served: list[str] = []
        self.goes_on = asyncio.Event()
        self.goes_on.set()

    async def serve(self, place: str, connection: socket.socket) -> None:
        await self.goes_on.wait()
        self.served.append(place)
        descriptor = os.open("/dev/null", os.O_RDONLY)
        try:
            send_tap(connection, descriptor, TapOffer(f"10.111.0.{len(self.served)}", 1450))
        finally:
            os.close(descriptor)


async def test_runner_is_handed_its_tap_at_its_place(root: Path) -> None:
    program = Program()
    sockets = TapSockets(root, program.serve)
    folder = sockets.make("place-3")
    tap = await receive_tap(folder, 5.0)
    os.close(tap.descriptor)
    assert (tap.address, tap.mtu, program.served) == ("10.111.0.1", 1450, ["place-3"])
    assert [each.name for each in folder.iterdir()] == [SOCKET]
    assert (folder.stat().st_mode & 0o777, (folder / SOCKET).stat().st_mode & 0o777) == (0o755, 0o666)
    sockets.close()


async def test_earlier_pod_at_a_place_gets_nothing_more(root: Path) -> None:
    """It may have passed on a connection, or the directory: both end when the kubelet assigns the directory to the next
    pod.
    """
    program = Program()
    program.goes_on.clear()
    sockets = TapSockets(root, program.serve)
    folder = os.open(sockets.make("place-0"), os.O_PATH)
    kept = Path(f"/proc/self/fd/{folder}")
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as earlier:
        earlier.connect(str(kept / SOCKET))
        await asyncio.sleep(0.05)
        sockets.make("place-0")
        program.goes_on.set()
        await asyncio.sleep(0.05)
        assert earlier.recv(100) == b""
    with pytest.raises(NetworkError, match="No such file"):
        await receive_tap(kept, 0.3)
    os.close(folder)
    assert program.served == []
    os.close((await receive_tap(root / "place-0", 5.0)).descriptor)
    sockets.close()


async def test_program_that_comes_back_serves_pods_that_wait(root: Path) -> None:
    flat = root / "flat"
    flat.mkdir()
    program = Program()
    before = TapSockets(flat, program.serve)
    before.make("place-7")
    before.close()
    waiting = asyncio.create_task(receive_tap(flat / "place-7", 5.0))
    await asyncio.sleep(0.05)
    after = TapSockets(flat, program.serve)
    after.restore()
    os.close((await waiting).descriptor)
    after.close()


async def test_pod_is_served_after_accepting_failed(
    root: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """With too many files open the listener was closed, and the pod had no network for as long as it lived."""
    loop, fails = asyncio.get_running_loop(), [OSError(24, "Too many open files")] * 2
    accept = loop.sock_accept

    async def failing(listener: socket.socket) -> tuple[socket.socket, object]:
        if fails:
            raise fails.pop()
        return await accept(listener)

    monkeypatch.setattr(loop, "sock_accept", failing)
    monkeypatch.setattr("deploy.neonvm.overlay.taps._PAUSE", 0.0)
    program = Program()
    sockets = TapSockets(root, program.serve)
    os.close((await receive_tap(sockets.make("place-3"), 5.0)).descriptor)
    sockets.close()
    assert (fails, program.served) == ([], ["place-3"])
    assert [record.message for record in caplog.records] == ["cannot accept a pod's connection for its tap"]


@pytest.mark.parametrize("place", ["..", "place-", "place-1/../..", "other"])
async def test_place_is_no_path(root: Path, place: str) -> None:
    with pytest.raises(OSError, match="invalid device ID"):
        TapSockets(root, Program().serve).make(place)


async def test_runner_says_what_it_has_waited_for(root: Path) -> None:
    with pytest.raises(NetworkError, match=r"no tap from the node's network program within 0.1 s .*No such file"):
        await receive_tap(root, 0.1)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(str(root / SOCKET))
        listener.listen(1)
        listener.setblocking(False)
        waiting = asyncio.create_task(receive_tap(root, 5.0))
        connection, _ = await asyncio.get_running_loop().sock_accept(listener)
        with connection:
            socket.send_fds(connection, [b"nonsense"], [listener.fileno()])
            with pytest.raises(NetworkError, match="cannot use the tap"):
                await waiting


def test_offer_is_json() -> None:
    assert msgspec.json.decode(msgspec.json.encode(TapOffer("10.111.0.1", 1450))) == {
        "address": "10.111.0.1",
        "mtu": 1450,
    }
