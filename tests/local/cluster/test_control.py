"""The endpoint through which the command line speaks to a running cluster."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import get_args

import msgspec
import pytest

from deploy.local.cluster import control
from deploy.local.cluster.control import (
    ClusterForwards,
    ControlError,
    ControlResponse,
    ask_cluster,
    control_endpoint,
)
from deploy.local.cluster.folder import ClusterFolder
from deploy.neonvm.network.loopback import LoopbackNetwork
from scripts.autoscale.local import KubeletAction, order_kubelet
from tests.neonvm.in_process import InProcess


@pytest.fixture
async def folder(tmp_path: Path) -> AsyncIterator[ClusterFolder]:
    opened = ClusterFolder("test", tmp_path)
    network = LoopbackNetwork("test-control", "a test")
    dial = partial(network.connect, None)
    forwards = ClusterForwards(InProcess().client(), dial, network.expose)
    stopped: list[str] = []

    def stop(node: str) -> None:
        if node != "node-1":
            raise LookupError(f"no node {node!r}")
        stopped.append(node)

    def status() -> ControlResponse:
        return ControlResponse(host=",".join(stopped))

    actions = {"stop-kubelet": stop, "start-kubelet": stop}
    async with control_endpoint(opened, forwards, status, actions):
        yield opened


async def send(folder: ClusterFolder, line: bytes) -> bytes:
    """Send a line to the endpoint and return its response."""
    port = json.loads(folder.control.read_text())["port"]
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(line)
    writer.write_eof()
    answer = await reader.read()
    writer.close()
    return answer


async def test_control_actions_work_or_explain(folder: ClusterFolder) -> None:
    await ask_cluster(folder, "stop-kubelet", "node-1")
    assert (await ask_cluster(folder, "status")).host == "node-1"
    with pytest.raises(ControlError, match="no node 'node-9'"):
        await ask_cluster(folder, "stop-kubelet", "node-9")


async def test_kubelet_command_explains_consequences(folder: ClusterFolder, capsys: pytest.CaptureFixture[str]) -> None:
    for action in get_args(KubeletAction):
        assert await order_kubelet(folder, action, "node-1") == 0
    stopped, runs = capsys.readouterr().out.splitlines()
    assert (
        stopped
        == "The kubelet of node-1 has stopped: its node becomes NotReady within a minute, and its guests keep running."
    )
    assert runs == "The kubelet of node-1 is running: its node becomes Ready in a few seconds."


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"\n",
        b"[]\n",
        b"\xff\n",
        b'{"token":"\xc3\xa9","ask":"status"}\n',
        b'{"token":"wrong","ask":"stop-kubelet","target":"node-1"}\n',
        b'{"a":' * 9000 + b"\n",
        b"x" * 100_000,
    ],
)
async def test_bad_or_unauthenticated_request_is_ignored(folder: ClusterFolder, line: bytes) -> None:
    answer = await send(folder, line)
    assert answer == b"" or json.loads(answer)["error"]
    assert (await ask_cluster(folder, "status")).host == ""


async def test_stopped_cluster_error_says_how_to_start(tmp_path: Path) -> None:
    with pytest.raises(ControlError, match="is not running; start it: autoscale local up --name test"):
        await ask_cluster(ClusterFolder("test", tmp_path), "status")


async def test_killed_cluster_does_not_run(tmp_path: Path) -> None:
    """Its control file is left behind; only the lock shows whether the process exists."""
    folder = ClusterFolder("test", tmp_path)
    folder.control.write_bytes(msgspec.json.encode(control.ControlEndpoint(port=1, token="", pid=1)))
    with pytest.raises(ControlError, match="is not running; start it"):
        await ask_cluster(folder, "status")
    with folder.locked(), pytest.raises(ControlError, match=r"does not respond: .*Connect"):
        await ask_cluster(folder, "status")


async def test_silent_connections_are_ended(folder: ClusterFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every user of the machine may connect, and none may take all places."""
    port = json.loads(folder.control.read_text())["port"]
    silent = [await asyncio.open_connection("127.0.0.1", port) for _ in range(control.MAX_CONNECTIONS)]
    assert (await ask_cluster(folder, "status")).error == ""
    async with asyncio.timeout(5):
        with suppress(ConnectionResetError):
            assert await silent[0][0].read() == b""
    monkeypatch.setattr(control, "REQUEST_TIMEOUT", 0.05)
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    async with asyncio.timeout(5):
        assert await reader.read() == b""
    for each in (writer, *(writer for _, writer in silent)):
        each.close()
