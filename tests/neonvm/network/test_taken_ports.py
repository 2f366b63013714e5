"""A machine on which other programs listen on all addresses: clusters use other ports and say so."""

from __future__ import annotations

import errno
import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from deploy.neonvm.network.loopback import PortMap
from deploy.neonvm.network.sockets import inodes_listening, listener_on, listening, tcp_socket
from deploy.neonvm.ports import NetworkError

_STORY = """
import asyncio, json, os, socket
from pathlib import Path
import httpx2 as httpx
from deploy.neonvm.network.loopback import LoopbackNetwork
from deploy.neonvm.simulated.simulated_guest import SimulatedGuests
from deploy.neonvm.simulated.simulated_load import Load
from protocol.runtime.clock import SystemClock
from protocol.units import Bytes
from tests.neonvm.qemu.fakes import MIB, spec_in

others = [socket.create_server(("0.0.0.0", port)) for port in (9100, 5432, 10255)]
others += [socket.create_server(("::", port), family=socket.AF_INET6, dualstack_ipv6=True) for port in (6443, 9101)]

async def main():
    network = LoopbackNetwork("taken", "a test")
    await network.up()
    await network.add_node("a")
    spec = spec_in(Path("/nowhere"))
    place = await network.add_pod("a", spec.pod)
    guests = SimulatedGuests(network, SystemClock(), lambda _: Load.constant(0.5, Bytes(128 * MIB)))
    guest = guests.create(spec_in(Path("/nowhere"), network=place))
    await guest.start()
    exposed = await network.expose(place.address, 9100)
    async with httpx.AsyncClient(trust_env=False) as http:
        inside = (await http.get(place.metrics_url)).text
        outside = (await http.get(f"http://127.0.0.1:{exposed}/metrics")).text
    api = await network.listen(None, 6443)
    print(json.dumps({
        "metrics": [place.metrics_url.rpartition(":")[2], "node_load1" in inside, "node_load1" in outside],
        "ports": [place.port_for(port) for port in (9100, 9101, 6443, 25183)],
        "api": api.getsockname()[1] == network.port_for(6443),
        "description": network.description.replace(f"(pid {os.getpid()})", "(this)"),
        "name": Path("/proc/self/comm").read_text().strip(),
    }))
    api.close()
    await guest.stop()
    await network.down()

asyncio.run(main())
"""


@pytest.fixture
def own_network() -> list[str]:
    """Enter a network namespace of the test, in which every port is free."""
    command = ["unshare", "--net", *([] if os.geteuid() == 0 else ["--map-root-user"]), "--"]
    ready = [*command, "sh", "-c", 'ip link set lo up && exec "$@"', "sh"]
    if shutil.which("ip") is None or subprocess.run([*ready, "true"], check=False, capture_output=True).returncode:
        pytest.skip("this user cannot make a network namespace")
    return ready


def test_simulated_guests_run_beside_kubernetes_ports(own_network: list[str]) -> None:
    run = subprocess.run([*own_network, sys.executable, "-c", _STORY], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    found = json.loads(run.stdout)
    taken = [(9100, 61000), (9101, 61001), (6443, 61002)]
    instead = "; ".join(f"port {port} is taken by {found['name']} (this): {other} instead" for port, other in taken)
    del found["name"]
    assert found == {
        "metrics": ["61000/metrics", True, True],
        "ports": [61000, 61001, 61002, 25183],
        "api": True,
        "description": f"nodes are names and pods are loopback addresses (a test; {instead})",
    }


@pytest.fixture
def taken() -> Iterator[int]:
    """A port on which something listens on all addresses of the machine."""
    with socket.create_server(("0.0.0.0", 0)) as listener:
        yield listener.getsockname()[1]


def test_failed_bind_names_program_and_closes(taken: int) -> None:
    before = len(list(Path("/proc/self/fd").iterdir()))
    with pytest.raises(OSError, match=rf"port {taken} at 127\.0\.0\.9 is taken by .* \(pid {os.getpid()}\)") as caught:
        listening(tcp_socket(), "127.0.0.9", taken)
    assert caught.value.errno == errno.EADDRINUSE
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_taken_port_is_replaced(taken: int) -> None:
    ports = PortMap.probe("127.0.0.9", [taken])
    assert ports.moved.keys() == {taken}
    assert ports.moved[taken] >= 61000
    assert f"port {taken} is taken by " in ports.description
    assert PortMap.probe("127.0.0.9", []).description == ""


def test_unusable_address_is_reported() -> None:
    with pytest.raises(NetworkError, match=r"cannot listen at 192\.0\.2\.1:80: "):
        PortMap.probe("192.0.2.1", [80])


def test_hidden_program_hint_says_how_to_look(tmp_path: Path) -> None:
    assert listener_on(9100, tmp_path) == "another program; find it with: sudo ss -ltnp 'sport = :9100'"


def test_kernel_table_names_listener() -> None:
    table = """  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 00000000:238C 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 111 1
   1: 0100007F:238C 00000000:0000 01 00000000:00000000 00:00000000 00000000     0        0 222 1
   2: 0100007F:1538 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 333 1
"""
    assert list(inodes_listening(table, 9100)) == ["111"]
