"""A VM's pod may run any program: no response of it stops the controller or other VMs."""

from __future__ import annotations

import asyncio
import base64
import gc
import logging
import socket
import tracemalloc
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import httpx2 as httpx
import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from deploy.neonvm.access.connections import RunnerEndpoint
from deploy.neonvm.network.sockets import listening, tcp_socket
from deploy.neonvm.ports import GuestError
from deploy.neonvm.qemu import qemu_process
from deploy.neonvm.remote.remote_guest import RemoteMachine
from deploy.neonvm.remote.runner_client import PollLimiter, RunnerClient
from protocol.kubernetes.objects import child, items, text
from protocol.kubernetes.resources import VIRTUAL_MACHINES
from protocol.runtime.serving.tcp_listener import TcpListener
from protocol.units import Seconds
from tests.neonvm.access.secured_pod import Reviews, connections
from tests.neonvm.remote.pods_world import DB, World, world
from tests.neonvm.remote.world_parts import OpenForm

PLACE = RunnerEndpoint("default/db-x", "uid", "10.0.0.9", 25183, 20183)
Answers = dict[str, Callable[[httpx.Response], httpx.Response]]
NEONVMS: Answers = {
    "/status": lambda _: httpx.Response(404),
    "/ready": lambda _: httpx.Response(200),
    "/cpu_current": lambda _: httpx.Response(200, json={"vcpus": 2}),
}


def unknown_curve(answer: httpx.Response) -> httpx.Response:
    """The same signing request, for a key on a curve that does not exist."""
    der = x509.load_pem_x509_csr(answer.content).public_bytes(Encoding.DER)
    der = der.replace(bytes.fromhex("2a8648ce3d030107"), bytes.fromhex("2a8648ce3d030142"))
    kind = b"CERTIFICATE REQUEST-----\n"
    return httpx.Response(200, content=b"-----BEGIN " + kind + base64.encodebytes(der) + b"-----END " + kind)


def our_fault(_: httpx.Response) -> httpx.Response:
    raise ZeroDivisionError("what no answer should lead to")


def answering(made: World, answers: Answers) -> None:
    """From now on runners give these responses instead of their own."""
    inner = made._to_runner

    async def answer(request: httpx.Request) -> httpx.Response:
        own = await inner(request)
        odd = answers.get(request.url.path)
        return odd(own) if odd is not None else own

    made._to_runner = answer  # type: ignore[method-assign]  # the world's only way to runners


async def has_run(made: World) -> str:
    await made.boot()
    return text(made.status, "podName")


def ended(made: World) -> tuple[str, str]:
    (said,) = items(made.migration, "conditions")
    return text(made.migration, "phase"), text(said, "reason")


def events(made: World, reason: str) -> list[str]:
    return [text(each, "message") for each in made.api.objects("events") if text(each, "reason") == reason]


async def test_guest_of_unfenced_pod_stays(tmp_path: Path) -> None:
    async with world(tmp_path) as made:
        made.form = OpenForm("runner:1")
        answering(made, NEONVMS)
        source = await has_run(made)
        await made.move()
        await made.until(lambda: made.migration.get("phase") == "Failed" and made.runs_well())
        assert (ended(made), list(made.pods)) == (("Failed", "NotMovable"), [source])


async def test_a_runner_that_decides_nothing_keeps_its_guest(tmp_path: Path) -> None:
    async with world(tmp_path) as made:
        answering(made, {"/handover": lambda _: httpx.Response(404)})
        source = await has_run(made)
        await made.move()
        await made.until(lambda: made.migration.get("phase") == "Failed" and list(made.pods) == [source])
        await made.until(made.runs_well)
        assert (ended(made), made.status["podName"], made.doubled) == (("Failed", "Refused"), source, [])


async def test_bad_signing_request_fails_one_move(tmp_path: Path) -> None:
    async with world(tmp_path) as made:
        source = await has_run(made)
        answering(made, {"/tls/request": unknown_curve})
        await made.move()
        await made.until(lambda: made.migration.get("phase") == "Failed" and list(made.pods) == [source])
        await made.until(made.runs_well)
        assert (ended(made), made.services[-1].done()) == (("Failed", "Refused"), False)


async def test_impossible_memory_is_ignored(tmp_path: Path) -> None:
    async with world(tmp_path) as made:
        made.form = OpenForm("runner:1")
        pod = await has_run(made)
        made.pods[pod].qemu.base = -5
        answering(made, NEONVMS)
        made.start()
        await made.kill(0)
        await made.until(lambda: made.services[-1].done() or made.pods[pod].qemu.asked.count("query-status") > 3)
        assert (made.services[-1].done(), made.runs_well()) == (False, True)


async def test_runner_that_never_answers_is_named(tmp_path: Path) -> None:
    """The VM waited "for the pod to run", though it ran."""
    async with world(tmp_path) as made:
        answering(made, {"/status": lambda _: httpx.Response(503, text="no guest here")})
        made.start()
        await made.create_vm()

        def reasons() -> list[tuple[str, str]]:
            return [(text(each, "reason"), text(each, "message")) for each in items(made.status, "conditions")]

        await made.until(lambda: "RunnerUnreachable" in dict(reasons()))
        assert reasons()[0][1].endswith("its runner refused /status: no guest here")
        assert made.status["phase"] == "Pending"


async def test_fault_of_runner_is_one_short_line(tmp_path: Path) -> None:
    """Messages of any pod were copied into the VM's status: up to 64 KiB of a runner, 10 MiB of a QEMU."""
    async with world(tmp_path) as made:

        def endless(own: httpx.Response) -> httpx.Response:
            return httpx.Response(200, json={**own.json(), "phase": "x" * 60_000})

        answering(made, {"/status": endless})
        made.start()
        await made.create_vm()

        def messages() -> list[str]:
            said = items(made.status, "conditions")
            return [text(each, "message") for each in said if text(each, "reason") == "RunnerUnreachable"]

        await made.until(lambda: bool(messages()))
        assert [(len(each) <= 300, "unknown phase" in each) for each in messages()] == [(True, True)]


async def test_failed_guest_loop_restarts(tmp_path: Path) -> None:
    async with world(tmp_path) as made:
        answers: Answers = {"/cpu_change": our_fault}
        await has_run(made)
        answering(made, answers)
        await made.client.merge_patch(VIRTUAL_MACHINES, DB, {"spec": {"guest": {"cpus": {"use": 3}}}})
        await made.until(lambda: "ZeroDivisionError" in said_of_size(made))
        answers.clear()
        await made.until(lambda: (made.status["cpus"], said_of_size(made)) == ("3", ""))


def said_of_size(made: World) -> str:
    available = [each for each in items({"s": made.status}, "s", "conditions") if text(each, "type") == "Available"]
    return next((text(each, "message") for each in available), "")


async def test_failed_move_loop_restarts(tmp_path: Path) -> None:
    async with world(tmp_path) as made:
        answers: Answers = {"/tls/request": our_fault}
        source = await has_run(made)
        answering(made, answers)
        await made.move()
        await made.until(lambda: events(made, "FailedMove"))
        answers.clear()
        await made.send()
        await made.until(lambda: made.migration.get("phase") == "Succeeded" and made.runs_well())
        assert (made.status["podName"] != source, made.doubled, child(made.migration, "info") != {}) == (True, [], True)


GREETING = b'{"QMP": {"version": {"qemu": {}, "package": ""}, "capabilities": []}}\r\n'
ANSWER = b'{"return": 7, "id": "__qmp#00000"}\r\n'


@asynccontextmanager
async def monitor_that_says(*parts: bytes) -> AsyncIterator[RemoteMachine]:
    """A pod's monitor that says this to the first command of each connection."""
    saying: list[asyncio.Task[None]] = []

    async def say(end: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        with end:
            for part in (GREETING, b'{"return": {}}\r\n', b"".join(parts)):
                await loop.sock_sendall(end, part)
                await loop.sock_recv(end, 4096)
            while await loop.sock_recv(end, 4096):
                pass

    async def connect(_: RunnerEndpoint) -> socket.socket:
        ends = socket.socketpair()
        for each in ends:
            each.setblocking(False)
        saying.append(asyncio.create_task(say(ends[1])))
        return ends[0]

    async with RemoteMachine(PLACE, connect, lambda: True) as machine:
        yield machine
    await asyncio.gather(*saying, return_exceptions=True)


@pytest.mark.parametrize(
    "said",
    [b"x" * (11 << 20), b'{"event": "STOP", "data": [' + b"[]," * 100_000 + b"[]]}\n", b'{"return": {}, "id": []}\n',
     b"[" * 100_000 + b"\n"],
    ids=["no line", "long", "no id", "deep"],
)  # fmt: skip
async def test_odd_qmp_message_is_guest_fault(said: bytes) -> None:
    """An event of 9 MB took 290 MiB of the controller's limit of 512."""
    async with monitor_that_says(said) as machine:
        for _ in range(2):
            tracemalloc.start()
            with pytest.raises(GuestError):
                await machine.call("query-status")
            peak = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
            assert peak < 4 << 20
            await machine.wait_for_event(0.05)  # the connection ends by itself meanwhile


async def test_events_of_a_pod_take_no_memory(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each was kept twice for as long as the connection, and each unsolicited response added a log line."""
    monkeypatch.setattr(qemu_process, "_CALL_SECONDS", 600.0)  # tracemalloc makes it slow, more so on a busy machine
    events = b'{"event": "STOP", "timestamp": {"seconds": 3, "microseconds": 0}}\r\n{"event": []}\r\n' * 100
    loggers = len(logging.root.manager.loggerDict)
    async with monitor_that_says(*[events] * 100, b'{"return": {}, "id": "x"}\r\n' * 100, ANSWER) as machine:
        tracemalloc.start()
        assert await machine.call("query-status") == 7
        gc.collect()
        held = tracemalloc.get_traced_memory()[0]
        tracemalloc.stop()
        assert (held < 4 << 20, machine.event_time("STOP"), caplog.records) == (True, 3.0, [])
    assert len(logging.root.manager.loggerDict) == loggers


ENDLESS = b"HTTP/1.0 200 OK\r\n\r\n"
HEAD = b"HTTP/1.0 %d X\r\nContent-Length: %d\r\n%s\r\n"


def answer_of(status: int, body: bytes, headers: bytes = b"") -> bytes:
    return HEAD % (status, len(body), headers) + body


@pytest.mark.parametrize(
    ("answer", "part", "said"),
    [
        (answer_of(200, b"x" * 70_000), b"", "response of its runner to /status is too large"),
        (ENDLESS, b"x" * 1000, "invalid response to GET /status: too large"),
        (ENDLESS, b"", "does not respond"),
        (answer_of(200, b"x", b"Content-Encoding: gzip\r\n"), b"", "compressed response"),
        (answer_of(500, b"\xff" * 1000), b"", "refused /status: "),
        (answer_of(200, b"[" * 60_000), b"", "invalid response from"),
    ],
    ids=["large", "endless", "slow", "packed", "no text", "deep"],
)
async def test_an_answer_has_a_size_and_a_time(answer: bytes, part: bytes, said: str) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        while part:
            writer.write(part)
            await writer.drain()
        await reader.read()

    serving = TcpListener([listening(tcp_socket(), "127.0.0.1", 0)], serve)
    place = replace(PLACE, address="127.0.0.1", api=serving.port, is_open=True)
    client = RunnerClient(connections(Reviews()), place, PollLimiter(), poll_timeout=Seconds(0.5))
    with pytest.raises(GuestError, match=said) as refused:
        await client.status()
    await serving.close()
    await asyncio.sleep(0.01)  # both ends close their sockets in the loop
    assert len(str(refused.value)) < 500


@pytest.mark.parametrize("place", [replace(PLACE, address="a" * 64), replace(PLACE, address="127.0.0.1", api=99_999)])
async def test_invalid_runner_address_is_a_fault(place: RunnerEndpoint) -> None:
    client = RunnerClient(connections(Reviews()), replace(place, is_open=True), PollLimiter())
    with pytest.raises(GuestError, match="cannot be reached"):
        await client.status()
