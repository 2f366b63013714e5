"""Commands to QEMU's monitor from outside its pod."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deploy.neonvm.access.callers import AGENT, ANONYMOUS, CONTROLLER
from deploy.neonvm.network.sockets import listening, tcp_socket
from deploy.neonvm.ports import GuestError
from deploy.neonvm.runner.gate_server import GateServer, split
from deploy.neonvm.runner.pod_runner import PodRunner
from deploy.neonvm.runner.qmp_gate import GateState, refusal
from protocol.runtime.serving.tcp_listener import TcpListener
from tests.fake_clock import settle
from tests.neonvm.access.secured_pod import Streams

MI = 1024**2
SIZE = {"path": "vm0", "property": "requested-size", "value": 1024 * MI}
AT_REST = GateState(max_plugged=2048 * MI)
SENDS = GateState(is_open=True, has_certificate=True)
WAITS = GateState(receives=True, has_certificate=True)
STANDINGS = st.builds(GateState, *[st.booleans()] * 6, st.sampled_from([0, 2048 * MI]))


def command(name: str, **arguments: object) -> dict[str, object]:
    return {"execute": name, "arguments": {key.replace("_", "-"): value for key, value in arguments.items()}}


PASSED: list[tuple[GateState, dict[str, object]]] = [
    (AT_REST, {"execute": "qmp_capabilities"}),
    (AT_REST, command("qmp_capabilities", enable=[])),
    (AT_REST, command("qmp_capabilities", enable=["oob"])),
    (AT_REST, {"execute": "query-status", "id": 7}),
    (AT_REST, command("qom-set", **SIZE)),
    (AT_REST, command("qom-get", path="/machine/peripheral/vm0", property="size")),
    (AT_REST, command("migrate-set-parameters", downtime_limit=20, max_bandwidth=2**30)),
    (AT_REST, command("migrate-set-capabilities", capabilities=[{"capability": "events", "state": True}])),
    (AT_REST, command("announce-self", initial=20, max=100, rounds=5, step=40)),
    (AT_REST, {"execute": "cont"}),
    (SENDS, command("migrate", uri="tcp:10.1.2.3:20187", inc=True)),
    (SENDS, command("migrate", uri="tcp:[fd00::1]:20187", inc=True)),
    (SENDS, {"execute": "migrate_cancel"}),
    (WAITS, command("migrate-incoming", uri="tcp:0.0.0.0:20187")),
    (WAITS, {"execute": "cont"}),
    (WAITS, {"execute": "quit"}),
    (GateState(is_given=True), {"execute": "quit"}),
    (GateState(has_sent=True), {"execute": "quit"}),
]


@pytest.mark.parametrize(("now", "message"), PASSED)
def test_what_a_controller_needs_is_passed_on(now: GateState, message: dict[str, object]) -> None:
    assert refusal(message, now) == ""


@pytest.mark.parametrize(
    "message",
    [
        [],
        7,
        {"exec-oob": "quit"},
        {"execute": 7},
        {"execute": "quit", "arguments": []},
        command("human-monitor-command", command_line="info qtree"),
        command("object-add", qom_type="secret"),
        command("object-del", id="migration-tls"),
        command("nbd-server-start", addr={"type": "inet"}),
        command("device_add", driver="e1000"),
        command("system_powerdown"),
        command("qmp_capabilities", enable=["more"]),
        command("query-status", more=1),
        command("migrate", uri="exec:sh"),
        command("migrate", uri="tcp:10.1.2.3:22"),
        command("migrate", uri="tcp:10.1.2.3,to=9999:20187"),
        command("migrate", uri="tcp:evil.example:20187"),
        command("migrate", uri="tcp:fe80::1%eth0:20187"),
        command("migrate", uri=["tcp:10.1.2.3:20187"]),
        command("migrate", uri="tcp:10.1.2.3:20187", blk=True),
        command("migrate-incoming", uri="exec:sh"),
        command("migrate-set-parameters", tls_creds=""),
        command("migrate-set-parameters", tls_hostname="me"),
        command("migrate-set-parameters", tls_authz="x"),
        command("migrate-set-parameters", downtime_limit="20"),
        command("migrate-set-parameters", max_bandwidth=True),
        command("migrate-set-capabilities", capabilities=[{"capability": "x-colo", "state": True}]),
        command("migrate-set-capabilities", capabilities=[{"capability": "events", "state": 1}]),
        command("migrate-set-capabilities", capabilities=["events"]),
        command("migrate-set-capabilities", capabilities={}),
        command("announce-self", interfaces=["net0"]),
        command("announce-self", rounds=10**9),
        command("qom-set", path="/machine", property="rtc-time", value=1),
        command("qom-set", path="vm0", property="size", value=1),
        command("qom-set", **{**SIZE, "value": 4096 * MI}),
        command("qom-set", **{**SIZE, "value": -2 * MI}),
        command("qom-set", **{**SIZE, "value": 1}),
        command("qom-set", **{**SIZE, "value": True}),
        command("qom-set", **{**SIZE, "value": "1073741824"}),
        command("qom-set", **{**SIZE, "path": ["vm0"]}),
        command("qom-get", path="/objects", property="data"),
        command("qom-get", path="vm0", property=["size"]),
        command("blockdev-add", driver="file", filename="/etc/shadow"),
    ],
)
@pytest.mark.parametrize("now", [AT_REST, SENDS, WAITS])
def test_everything_else_is_refused(message: object, now: GateState) -> None:
    assert refusal(message, now) != ""


@pytest.mark.parametrize(
    ("name", "now"),
    [
        ("migrate", AT_REST),
        ("migrate", GateState(has_certificate=True)),
        ("migrate", GateState(is_open=True)),
        ("migrate", WAITS),
        ("migrate-incoming", GateState(has_certificate=True)),
        ("migrate-incoming", GateState(receives=True)),
        ("migrate-incoming", SENDS),
        ("quit", AT_REST),
        ("quit", SENDS),
        ("cont", SENDS),
        ("cont", GateState(is_given=True)),
    ],
)
def test_a_move_goes_by_its_steps(name: str, now: GateState) -> None:
    """No guest is sent outside of a migration or without TLS, none that runs is ended, and none runs at both ends."""
    message = command(name, uri="tcp:10.1.2.3:20187") if name.startswith("migrate") else command(name)
    assert refusal(message, now) not in {"", f"{name} is not allowed in this pod with these arguments"}


@pytest.mark.parametrize(("now", "message"), PASSED)
def test_sleeping_guest_is_only_asked(now: GateState, message: dict[str, object]) -> None:
    """A late command must neither run a guest whose memory is being restored, nor cancel the saving of its memory."""
    name = str(message["execute"])
    passes = name.startswith("query-") or name in {"qmp_capabilities", "qom-get"}
    assert refusal(message, replace(now, sleeps=True)) == ("" if passes else "the guest is asleep; wake it first")


NAMES = {str(message["execute"]) for _, message in PASSED}
WORDS = st.sampled_from(["uri", "path", "property", "value", "inc", "tls-creds", "capabilities", "enable", "vm0"])
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8) | WORDS | st.just("tcp:10.1.2.3:20187"),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORDS | st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)
COMMANDS = st.builds(
    lambda name, arguments: {"execute": name, "arguments": arguments},
    st.sampled_from(sorted(NAMES)) | st.text(max_size=12),
    st.dictionaries(WORDS | st.text(max_size=6), JSON, max_size=3),
)


@given(JSON | COMMANDS, STANDINGS)
def test_nothing_off_the_list_reaches_qemu(message: object, now: GateState) -> None:
    """Whatever is sent, at any time, only listed commands that are harmless at that time are passed on."""
    if refusal(message, now):
        return
    assert isinstance(message, dict)
    name, arguments = message["execute"], message.get("arguments", {})
    assert name in NAMES or name.startswith("query-")
    assert not (name == "migrate" and not (now.is_open and now.has_certificate))
    assert not (name == "migrate-incoming" and not (now.receives and now.has_certificate))
    assert not (name == "cont" and (now.is_given or now.is_open))
    assert not (name == "quit" and not (now.is_given or now.receives or now.has_sent))
    assert not (name == "qom-set" and not 0 <= arguments["value"] <= now.max_plugged)
    assert not any("tls" in key or key in {"exec", "fd", "file", "channels"} for key in arguments)


@given(
    st.lists(st.dictionaries(st.text(), st.integers()), max_size=4),
    st.integers(0, 200),
    st.sampled_from(["", " ", "\n"]),
)
def test_values_are_found_however_they_are_cut(values: list[dict[str, int]], cut: int, between: str) -> None:
    said = between.join(json.dumps(each) for each in values)
    first, rest = split(said[:cut])
    second, rest = split(rest + said[cut:])
    assert (first + second, rest) == (values, "")


@dataclass
class Pod(PodRunner):
    """The pod as the gate sees it; ``is_lost``: its QEMU does not respond."""

    now: GateState = AT_REST
    is_lost: bool = False
    migration_source: None = None

    def known_gate_state(self) -> GateState:
        return self.now

    async def gate_state(self) -> GateState:
        if self.is_lost:
            raise GuestError("QEMU does not answer")
        return self.now


@dataclass
class Qemu:
    """A monitor that sends a greeting, and answers each line."""

    heard: list[bytes] = field(default_factory=list)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b'{"QMP": {}}\r\n')
        while line := await reader.readline():
            self.heard.append(line.strip())
            writer.write(b'{"return": {}}\r\n')
        writer.close()


async def answers(gate: GateServer, who: str, orders: bytes, count: int) -> list[str]:
    """Output for a client of that name: the greeting, and this many lines."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await gate.serve(who, reader, writer)

    served = TcpListener([listening(tcp_socket(), "127.0.0.1", 0)], serve)
    reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
    lines = [(await reader.readline()).decode().strip()]
    if lines[0]:
        writer.write(orders)
        lines += [(await reader.readline()).decode().strip() for _ in range(count)]
    writer.close()
    await writer.wait_closed()
    await served.close()
    await settle()
    return lines


async def test_a_controller_speaks_with_qemu_and_hears_refusals(tmp_path: Path) -> None:
    qemu, monitor = Qemu(), tmp_path / "monitor"
    async with await asyncio.start_unix_server(qemu.serve, monitor):
        gate = GateServer([monitor], Pod())
        for _ in range(2):  # the monitor is free again for the next client
            orders = b'{"execute": "stop", "id": 4}{"execute":\n"query-status"}{"execute": "quit"}'
            greeting, *said = await answers(gate, CONTROLLER, orders, 3)
            refused = [
                {"error": {"class": "CommandNotFound", "desc": "stop is not allowed in this pod"}, "id": 4},
                {"error": {"class": "CommandNotFound", "desc": "the guest runs here and was not migrated away"}},
            ]
            assert greeting == '{"QMP": {}}'
            assert sorted(said) == sorted([*map(json.dumps, refused), '{"return": {}}'])
    assert qemu.heard == [b'{"execute": "query-status"}'] * 2


@pytest.mark.parametrize("who", [ANONYMOUS, AGENT])
async def test_others_get_no_monitor(who: str, tmp_path: Path) -> None:
    qemu, monitor = Qemu(), tmp_path / "monitor"
    async with await asyncio.start_unix_server(qemu.serve, monitor):
        assert await answers(GateServer([monitor], Pod()), who, b"", 0) == [""]
    assert qemu.heard == []


async def test_a_move_waits_until_qemu_answers(tmp_path: Path) -> None:
    qemu, monitor = Qemu(), tmp_path / "monitor"
    async with await asyncio.start_unix_server(qemu.serve, monitor):
        gate = GateServer([monitor], Pod(is_lost=True))
        _, refused = await answers(gate, CONTROLLER, b'{"execute": "quit"}', 1)
    assert ("QEMU does not answer" in refused, qemu.heard) == (True, [])


@asynccontextmanager
async def busy_gate(
    folder: Path,
) -> AsyncIterator[tuple[Callable[[], Awaitable[Streams]], Streams, asyncio.Queue[None]]]:
    """A gate whose only monitor has a client: a way to connect, that client, and an entry for each client that left."""
    qemu, left = Qemu(), asyncio.Queue[None]()
    async with await asyncio.start_unix_server(qemu.serve, folder / "monitor"):
        gate = GateServer([folder / "monitor"], Pod())

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await gate.serve(CONTROLLER, reader, writer)
            left.put_nowait(None)

        served = TcpListener([listening(tcp_socket(), "127.0.0.1", 0)], serve)

        async def connected() -> Streams:
            return Streams(*await asyncio.open_connection("127.0.0.1", served.port))

        first = await connected()
        assert await first.reader.readline() == b'{"QMP": {}}\r\n'
        yield connected, first, left
        first.close()
        await served.close()


async def test_waiting_client_that_hangs_up_leaves(tmp_path: Path) -> None:
    """Its slot is free immediately, not only when its turn comes."""
    async with busy_gate(tmp_path) as (connected, _, left):
        waiting = [await connected() for _ in range(3)]
        waiting[1].writer.write(b'{"execute": "query-status"}')
        for client in waiting:
            client.close()
        async with asyncio.timeout(2):
            for _ in range(3):
                await left.get()


async def test_flood_before_its_turn_is_cut(tmp_path: Path) -> None:
    async with busy_gate(tmp_path) as (connected, _, left):
        flood = await connected()
        flood.writer.write(b" " * 128 * 1024)
        async with asyncio.timeout(2):
            await left.get()
        flood.close()


async def test_orders_sent_before_the_turn_are_answered(tmp_path: Path) -> None:
    async with busy_gate(tmp_path) as (connected, first, _):
        gone, waiting = await connected(), await connected()
        waiting.writer.write(b'{"execute": "query-')
        await asyncio.sleep(0.05)
        gone.close()
        first.close()
        assert await waiting.reader.readline() == b'{"QMP": {}}\r\n'
        waiting.writer.write(b'status"}')
        async with asyncio.timeout(2):
            assert await waiting.reader.readline() == b'{"return": {}}\r\n'
        waiting.close()
