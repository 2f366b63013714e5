"""Attacks on the ports of a runner pod from within the cluster; each one worked once."""

from __future__ import annotations

import asyncio
import ssl

import pytest

from deploy.neonvm.access.authenticated_listener import PER_ADDRESS
from deploy.neonvm.access.callers import AGENT, CONTROLLER
from tests.neonvm.access.secured_pod import GREETING, SecuredPod, pem, showing, stranger

MOVE = {"move": "m1", "decision": "open"}
ATTACKS = [
    ("POST", "/cpu_change", {"vcpus": 2.5}),
    ("GET", "/cpu_current", None),
    ("GET", "/status", None),
    ("POST", "/introduce", {"authorities": pem("theirs")}),
    ("POST", "/handover", {"move": "m1", "decision": "given"}),
    ("POST", "/tls/request", {"move": "m1"}),
    ("PUT", "/tls/certificate", {"move": "m1", "certificate": "", "authority": ""}),
    ("PUT", "/announce", None),
    ("PUT", "/sleep", None),
    ("PUT", "/wake", None),
    ("GET", "/woken", None),
]
ORDERS = [
    {"execute": "qmp_capabilities"},
    {"execute": "qom-set", "arguments": {"path": "vm0", "property": "requested-size", "value": 2**30}},
    {"execute": "migrate", "arguments": {"uri": "tcp:10.9.9.9:20187"}},
    {"execute": "quit"},
]


def clients() -> dict[str, ssl.SSLContext | None]:
    """Everyone but the controller."""
    return {
        "plain": None,
        "without a certificate": stranger(),
        "an agent of a node": showing(AGENT).context,
        "kube-scheduler": showing("autoscaling-kube-scheduler").context,
        "another authority's controller": showing(CONTROLLER, by="theirs").context,
        "an unknown client": showing("somebody").context,
    }


@pytest.mark.parametrize("who", clients())
@pytest.mark.parametrize(("method", "path", "body"), ATTACKS)
async def test_orders_of_others_are_refused(pod: SecuredPod, who: str, method: str, path: str, body: object) -> None:
    answer = await pod.ask(clients()[who], method, path, body)
    assert answer is None or answer.status == 403
    assert (pod.pod.daemon.asked, pod.pod.hypervisor.machine.calls, pod.pod.flat.story) == ([], [], [])
    assert pod.pod.sleeper.orders == []


@pytest.mark.parametrize("who", clients())
async def test_others_do_not_disturb_sleep(pod: SecuredPod, who: str) -> None:
    """Only the controller may know what wakes a guest, and which sessions it has."""
    assert await pod.ask(showing().context, "PUT", "/sleep")
    for method, path in (("PUT", "/sleep"), ("PUT", "/wake"), ("GET", "/woken"), ("GET", "/status")):
        answer = await pod.ask(clients()[who], method, path)
        assert answer is None or answer.status == 403
    assert (pod.pod.sleeper.orders, pod.pod.flat.story) == (["sleep", "listen"], ["nothing is diverted"])


async def test_probes_of_a_sleeper_succeed(pod: SecuredPod) -> None:
    assert await pod.ask(showing().context, "PUT", "/sleep")
    pod.pod.daemon.asked.clear()
    for path in ("/ready", "/healthz"):
        answer = await pod.ask(stranger(), "GET", path)
        assert answer is not None
        assert answer.status == 200
    assert (pod.pod.daemon.asked, pod.pod.sleeper.orders) == ([], ["sleep", "listen"])


@pytest.mark.parametrize("who", clients())
async def test_others_do_not_reach_qemu(pod: SecuredPod, who: str) -> None:
    assert (await pod.says(clients()[who], *ORDERS), pod.monitor.heard) == ([], [])


async def test_a_kubelet_probes_without_a_certificate(pod: SecuredPod) -> None:
    for path in ("/ready", "/healthz"):
        answer = await pod.ask(stranger(), "GET", path)
        assert answer is not None
        assert answer.status == 200


async def test_a_probes_connection_asks_nothing_else(pod: SecuredPod) -> None:
    streams = await pod.connected(stranger())
    assert (await streams.ask("GET", "/healthz", b"")).status == 200
    with pytest.raises(OSError, match="invalid response to"):
        await streams.ask("GET", "/healthz", b"")
    streams.close()


async def test_probes_cost_the_guest_one_question(pod: SecuredPod) -> None:
    await asyncio.gather(*(pod.ask(stranger(), "GET", "/ready") for _ in range(PER_ADDRESS - 1)))
    assert pod.pod.daemon.asked.count("GET /ready") == 1


async def test_a_node_agent_asks_how_the_database_is(pod: SecuredPod) -> None:
    answer = await pod.ask(showing(AGENT).context, "GET", "/database")
    assert answer is not None
    assert (answer.status, answer.body) == (200, b'{"sessions": 1}\n')
    assert (await pod.ask(stranger(), "GET", "/database") or answer).status == 403


async def test_the_controller_is_heard(pod: SecuredPod) -> None:
    answer = await pod.ask(showing().context, "POST", "/cpu_change", {"vcpus": 2.5})
    assert answer is not None
    assert (answer.status, answer.body) == (200, b'{"vcpus":"2500m"}')


async def test_the_controllers_orders_pass_the_gate(pod: SecuredPod) -> None:
    """Its monitor accepts a size within the VM's bounds; a guest is neither sent nor ended outside of a migration."""
    greeting, *said = await pod.says(showing().context, *ORDERS)
    assert greeting == GREETING.decode()
    assert pod.monitor.heard == ["qmp_capabilities", "qom-set"]
    assert ["error" in each for each in said] == [False, False, True, True]


async def test_a_handover_alone_sends_and_ends_nothing(pod: SecuredPod) -> None:
    """A migration without its certificate: neither ``migrate`` nor ``quit`` reaches QEMU."""
    assert await pod.ask(showing().context, "POST", "/handover", MOVE)
    await pod.says(showing().context, *ORDERS[2:])
    assert pod.monitor.heard == []


async def test_idle_connections_lock_nobody_out(pod: SecuredPod) -> None:
    """Twice as many as one address may have, and some with half of a handshake, at both ports."""
    idle = []
    for port in (pod.api.port, pod.gate.port):
        for number in range(2 * PER_ADDRESS):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"\x16\x03\x01" if number % 2 else b"")
            idle.append((reader, writer))
    async with asyncio.timeout(2.0):
        assert await pod.ask(showing().context, "GET", "/cpu_current")
        assert (await pod.says(showing().context, {"execute": "query-status"}))[1:] == ['{"return": {}}\r\n']
        assert await pod.ask(stranger(), "GET", "/healthz")
        ended = [await reader.read() for reader, _ in idle[: PER_ADDRESS + 1]]
    assert ended == [b""] * (PER_ADDRESS + 1), "the oldest have made room"
    for _, writer in idle:
        writer.close()


async def test_connections_that_have_proven_themselves_keep_their_places(pod: SecuredPod) -> None:
    known = [await pod.connected(showing().context) for _ in range(PER_ADDRESS + 1)]
    for each in known:
        assert (await each.ask("GET", "/cpu_current", b"")).status == 200
    idle = [await asyncio.open_connection("127.0.0.1", pod.api.port) for _ in range(2 * PER_ADDRESS)]
    for each in known:
        assert (await each.ask("GET", "/cpu_current", b"")).status == 200
        each.close()
    for _, writer in idle:
        writer.close()


async def test_caller_without_certificate_is_disconnected(pod: SecuredPod, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("deploy.neonvm.access.authenticated_listener.AUTHENTICATION_SECONDS", 0.05)
    monkeypatch.setattr("deploy.neonvm.access.authenticated_listener.PROBE_SECONDS", 0.05)
    silent = await asyncio.open_connection("127.0.0.1", pod.api.port)
    unsaid = await pod.connected(stranger())
    async with asyncio.timeout(2.0):
        assert await silent[0].read() == b""
        assert await unsaid.reader.read() == b""
    silent[1].close()
    unsaid.close()
