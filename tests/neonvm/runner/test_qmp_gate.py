"""Which orders reach QEMU's monitor from outside of its pod."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deploy.neonvm.network.serving import Serving
from deploy.neonvm.network.sockets import listening, tcp_socket
from deploy.neonvm.runner.gate_server import GateServer, split
from deploy.neonvm.runner.qmp_gate import refusal

SIZE = {"path": "vm0", "property": "requested-size", "value": 1024}


def command(name: str, **arguments: object) -> dict[str, object]:
    return {"execute": name, "arguments": {key.replace("_", "-"): value for key, value in arguments.items()}}


@pytest.mark.parametrize(
    "message",
    [
        {"execute": "qmp_capabilities"},
        {"execute": "query-status", "id": 7},
        command("qom-set", **SIZE),
        command("qom-get", path="/machine/peripheral/vm0", property="size"),
        command("migrate", uri="tcp:10.1.2.3:20187", inc=True),
        command("migrate-incoming", uri="tcp:0.0.0.0:20187"),
        command("migrate-set-parameters", downtime_limit=20, tls_creds="x"),
        {"execute": "quit"},
    ],
)
def test_what_a_controller_needs_is_passed_on(message: dict[str, object]) -> None:
    assert refusal(message, is_given=False) == ""


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
        command("migrate", uri="exec:sh"),
        command("migrate", uri="tcp:10.1.2.3:22"),
        command("migrate", uri="tcp:10.1.2.3,to=9999:20187"),
        command("migrate-set-parameters", tls_authz="x"),
        command("qom-set", path="/machine", property="rtc-time", value=1),
        command("qom-set", path="vm0", property="size", value=1),
        command("qom-get", path="/objects", property="data"),
        command("blockdev-add", driver="file", filename="/etc/shadow"),
    ],
)
def test_everything_else_is_refused(message: object) -> None:
    assert refusal(message, is_given=False) != ""


def test_a_guest_that_was_given_away_is_never_continued() -> None:
    assert refusal({"execute": "cont"}, is_given=False) == ""
    assert "given away" in refusal({"execute": "cont"}, is_given=True)
    assert refusal({"execute": "quit"}, is_given=True) == ""


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


async def test_a_client_speaks_with_a_monitor_of_qemu_and_hears_why_it_may_not(tmp_path: Path) -> None:
    heard: list[bytes] = []

    async def qemu(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b'{"QMP": {}}\r\n')
        while line := await reader.readline():
            heard.append(line.strip())
            writer.write(b'{"return": {}}\r\n')
        writer.close()

    monitor = tmp_path / "monitor"
    async with await asyncio.start_unix_server(qemu, monitor):
        gate = await Serving.on(listening(tcp_socket(), "127.0.0.1", 0), GateServer([monitor], lambda: False).serve)
        for _ in range(2):  # the monitor is free again for the next client
            reader, writer = await asyncio.open_connection("127.0.0.1", gate.port)
            assert await reader.readline() == b'{"QMP": {}}\r\n'
            writer.write(b'{"execute": "stop", "id": 4}{"execute":\n"query-status"}')
            answers = [json.loads(await reader.readline()) for _ in range(2)]
            refused = {"error": {"class": "CommandNotFound", "desc": "stop is not offered by this pod"}, "id": 4}
            assert sorted(map(str, answers)) == sorted(map(str, [refused, {"return": {}}]))
            writer.close()
            await writer.wait_closed()
        await gate.close()
    assert heard == [b'{"execute": "query-status"}'] * 2
