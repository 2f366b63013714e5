"""A runner pod at its ports: the API that NeonVM's runner has, and ours, over a QEMU that is faked."""

from __future__ import annotations

import json
import os
import time
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from cryptography import x509

from deploy.neonvm.ports import GuestError
from deploy.neonvm.qemu.machine import Decided
from deploy.neonvm.remote.migration_endpoint import MigrationAuthority
from deploy.neonvm.runner.decisions import Decisions
from deploy.neonvm.runner.pod_runner import PodExit
from deploy.neonvm.runner.qmp_gate import GateState
from deploy.neonvm.texts.runner import MIGRATED_AWAY
from protocol.units import Seconds
from tests.neonvm.qemu.fakes import FakeGuestDaemon, FakeMachine
from tests.neonvm.runner.one_pod import Pod, running, scripted_daemon


@pytest.fixture
async def daemon() -> AsyncIterator[FakeGuestDaemon]:
    async with scripted_daemon() as made:
        yield made


@pytest.fixture
async def pod(tmp_path: Path, daemon: FakeGuestDaemon) -> AsyncIterator[Pod]:
    async with running(Pod(tmp_path, daemon)) as made:
        yield made


async def test_neonvms_controller_asks_in_its_own_words(pod: Pod) -> None:
    assert (await pod.ask("GET", "/cpu_current")).body == b'{"vcpus":1}'
    assert (await pod.ask("POST", "/cpu_change", {"vcpus": "2500m"})).status == 200
    assert (await pod.ask("POST", "/cpu_change", {"vcpus": 2.5})).status == 200
    assert (await pod.ask("POST", "/cpu_change", {"VCPUs": "2500m"})).status == 200, "as v0.49.1 writes it"
    assert pod.daemon.asked[-3:] == ["PUT /cpu 2500"] * 3, "an order costs the guest one question"
    pod.daemon.answers["PUT /cpu 2500"] = (200, "2500")
    assert (await pod.ask("POST", "/cpu_change", {"vcpus": 2.5})).body == b'{"vcpus":"2500m"}'
    assert (await pod.ask("POST", "/cpu_change", {"cpus": 2})).status == 400
    assert (await pod.ask("POST", "/cpu_change", b"[]")).status == 400


async def test_a_pod_is_ready_once_its_database_answers(pod: Pod) -> None:
    pod.daemon.answers["GET /ready"] = (503, "it is starting")
    assert (await pod.ask("GET", "/ready")).status == 503
    assert (await pod.ask("GET", "/healthz")).status == 200
    pod.daemon.answers["GET /ready"] = (200, "ready")
    assert (await pod.ask("GET", "/ready")).status == 200
    said = {
        "phase": "Running",
        "cpu": 1000,
        "memory": 512 * 1024**2,
        "accelerator": "tcg",
        "reason": "a test",
        "given": False,
    }
    assert json.loads((await pod.ask("GET", "/status")).body) == said


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("POST", "/cpu_change", b'{"vcpus": "much"}', 400),
        ("POST", "/cpu_change", b'{"vcpus": 9}', 503),
        ("POST", "/cpu_change", b"{}", 400),
        ("POST", "/cpu_change", b'{"a":' + b"[" * 2000 + b"]" * 2000 + b"}", 400),
        ("POST", "/handover", b'{"move": "m", "decision": "ours"}', 400),
        ("DELETE", "/cpu_change", b"", 405),
        ("GET", "/secrets", b"", 404),
        ("GET", "//[", b"", 404),
    ],
)
async def test_what_makes_no_sense_is_refused(pod: Pod, method: str, path: str, body: bytes, status: int) -> None:
    assert (await pod.ask(method, path, body)).status == status


async def test_whose_the_guest_is_is_decided_once(pod: Pod) -> None:
    async def decide(move: str, wanted: str) -> str:
        reply = await pod.ask("POST", "/handover", {"move": move, "decision": wanted})
        return str(json.loads(reply.body)["decision"])

    assert [await decide("m1", each) for each in ("open", "kept", "given", "open")] == ["open", "kept", "kept", "kept"]
    assert [await decide("m2", each) for each in ("given", "kept")] == ["given", "given"]
    assert await decide("m3", "kept") == "given"
    assert (await pod.ask("POST", "/cpu_change", {"vcpus": 2.5})).status == 503


def test_late_order_of_earlier_move_is_ignored() -> None:
    decisions = Decisions()
    assert decisions.decide("m1", Decided.KEPT) is Decided.KEPT
    assert decisions.decide("m2", Decided.OPEN) is Decided.OPEN
    assert (decisions.decide("m1", Decided.GIVEN), decisions.is_given) == (Decided.KEPT, False)
    assert (decisions.decide("m2", Decided.GIVEN), decisions.is_given) == (Decided.GIVEN, True)
    assert decisions.decide("m1", Decided.KEPT) is Decided.KEPT, "nor is its target told to run"


def test_newer_move_ends_undecided_one() -> None:
    decisions = Decisions()
    assert [decisions.decide(move, Decided.OPEN) for move in ("m1", "m2")] == [Decided.OPEN, Decided.OPEN]
    assert decisions.decide("m1", Decided.GIVEN) is Decided.KEPT
    assert decisions.decide("m2", Decided.GIVEN) is Decided.GIVEN


def test_remembered_moves_are_bounded() -> None:
    decisions = Decisions()
    decisions.decide("m0", Decided.KEPT)
    for number in range(1, 256):
        decisions.decide(f"m{number}", Decided.KEPT)
    assert decisions.decide("m0", Decided.GIVEN) is Decided.KEPT
    decisions.decide("last", Decided.GIVEN)
    assert {decisions.decide(f"n{number}", Decided.KEPT) for number in range(300)} == {Decided.GIVEN}
    assert decisions.is_given


async def test_late_order_keeps_present_frames(pod: Pod) -> None:
    pod.runner.decide("m1", Decided.KEPT)
    pod.runner.decide("m2", Decided.OPEN)
    pod.runner.decide("m1", Decided.GIVEN)
    assert pod.flat.story == ["the guest stays"]


async def test_certificate_needs_own_key_and_is_removed(pod: Pod, tmp_path: Path) -> None:
    asked = (await pod.ask("POST", "/tls/request", {"move": "m1"})).body.decode()
    assert (await pod.ask("POST", "/tls/request", {"move": "m1"})).body.decode().splitlines()[0] == asked.splitlines()[
        0
    ]
    assert x509.load_pem_x509_csr(asked.encode()).is_signature_valid
    given = {"move": "m1", "certificate": "nonsense", "authority": ""}
    assert b"invalid certificate" in (await pod.ask("PUT", "/tls/certificate", given)).body
    assert [name for name in os.listdir(tmp_path) if name.startswith("tls-")] == []  # noqa: PTH208 - as the kernel says it


async def test_sending_requires_current_moves_certificate(pod: Pod) -> None:
    """QEMU itself requires it, so no client can leave it out; a later migration needs another one."""
    told = pod.hypervisor.machine.calls
    assert await pod.runner.gate_state() == GateState(max_plugged=1792 * 1024**2)
    await pod.ask("POST", "/handover", {"move": "m1", "decision": "open"})
    assert await pod.runner.gate_state() == GateState(is_open=True, max_plugged=1792 * 1024**2)
    await certify(pod, "m1")
    orders = [name for name, _ in told if not name.startswith("query")]
    assert orders == ["qom-list", "object-add", "migrate-set-parameters"]
    route = {"tls-creds": "migration-tls", "tls-hostname": "target.migration.local"}
    assert dict(told)["migrate-set-parameters"] == route
    assert await pod.runner.gate_state() == GateState(is_open=True, has_certificate=True, max_plugged=1792 * 1024**2)
    await pod.ask("POST", "/handover", {"move": "m2", "decision": "open"})
    assert not (await pod.runner.gate_state()).has_certificate
    pod.hypervisor.machine.answers["query-status"] = {"status": "postmigrate"}
    await pod.ask("POST", "/handover", {"move": "m2", "decision": "given"})
    now = await pod.runner.gate_state()
    assert (now.is_open, now.is_given, now.has_sent) == (False, True, True)


@dataclass
class QemuWithObjects(FakeMachine):
    """Its object IDs are unique, and the response to ``late`` is lost once."""

    late: str = ""
    objects: set[str] = field(default_factory=set)

    async def call(self, command: str, arguments: Mapping[str, object] | None = None) -> object:
        about = arguments or {}
        name = str(about.get("id"))
        if (command == "object-add" and name in self.objects) or (command == "object-del" and name not in self.objects):
            raise GuestError(f"{command}: {name}")
        (self.objects.add if command == "object-add" else self.objects.discard)(name)
        if command == self.late:
            self.late = ""
            raise GuestError("no response within 10 s")
        if command == "qom-list":
            return [{"name": each} for each in (self.objects if about["path"] == "/objects" else ["objects"])]
        return await super().call(command, arguments)


@pytest.mark.parametrize("late", ["object-add", "migrate-set-parameters", "object-del"])
async def test_certificate_is_replaced_after_late_response(tmp_path: Path, daemon: FakeGuestDaemon, late: str) -> None:
    """QEMU had credentials that the runner did not know of, and refused all others: the VM could never migrate
    again.
    """
    pod, machine = Pod(tmp_path, daemon), QemuWithObjects()
    pod.hypervisor.machine = machine
    async with running(pod):
        await certify(pod, "m1")
        await pod.ask("POST", "/handover", {"move": "m2", "decision": "open"})
        machine.late = late
        assert [await certified(pod, "m2"), await certified(pod, "m2")] == [503, 200]
        assert ((await pod.runner.gate_state()).has_certificate, machine.objects) == (True, {"migration-tls"})


async def test_receiving_requires_certificate(tmp_path: Path, daemon: FakeGuestDaemon) -> None:
    pod = Pod(tmp_path, daemon, receives=True)
    life = await pod.begin()
    answers = pod.hypervisor.machine.answers
    answers["query-status"] = {"status": "inmigrate"}
    await certify(pod, "m1")
    now = await pod.runner.gate_state()
    assert (now.receives, now.has_certificate) == (True, True)
    answers["query-status"] = {"status": "running"}
    now = await pod.runner.gate_state()
    assert (now.receives, now.has_certificate, now.has_sent) == (False, False, False)
    pod.hypervisor.machine.fail("over")
    await life


async def certify(pod: Pod, move: str) -> None:
    assert await certified(pod, move) == 200


async def certified(pod: Pod, move: str) -> int:
    """Give the pod a migration's certificate from a controller. Returns the response's status."""
    authority = MigrationAuthority(move, time.time())
    request = (await pod.ask("POST", "/tls/request", {"move": move})).body
    certificate = authority.signed(request, "source.migration.local").decode()
    given = {"move": move, "certificate": certificate, "authority": authority.certificate.decode()}
    return (await pod.ask("PUT", "/tls/certificate", given)).status


async def test_status_says_that_guest_lacks_space(pod: Pod) -> None:
    assert (await pod.ask("GET", "/status")).status == 200
    pod.daemon.answers["GET /cpu"] = (500, "nothing")
    answers, said = pod.hypervisor.machine.answers, list[bytes]()
    for run_state in ("io-error", "running"):
        answers["query-status"] = {"status": run_state}
        said.append((await pod.ask("GET", "/cpu_current")).body)
    assert said[0] == b"the node's disk is full: the guest is paused until there is space\n"
    assert b"invalid CPU: nothing" in said[1]


async def test_frames_are_led_to_the_pod(pod: Pod) -> None:
    await pod.ask("PUT", "/announce")
    assert pod.flat.story == ["announced"]


async def test_pod_ends_with_guest_and_reason(tmp_path: Path, daemon: FakeGuestDaemon) -> None:
    pod = Pod(tmp_path, daemon)
    life = await pod.begin()
    pod.hypervisor.machine.fail("its kernel panicked")
    ending = await life
    assert (ending.code, ending.message.partition(";")[0]) == (1, "the guest has ended: its kernel panicked")


async def test_pod_of_moved_guest_succeeds(tmp_path: Path, daemon: FakeGuestDaemon) -> None:
    pod = Pod(tmp_path, daemon)
    life = await pod.begin()
    pod.runner.decide("m1", Decided.GIVEN)
    pod.hypervisor.machine.fail("QEMU exited with code 0")
    assert await life == PodExit(0, MIGRATED_AWAY)


async def test_termination_shuts_guest_down(tmp_path: Path, daemon: FakeGuestDaemon) -> None:
    daemon.answers["PUT /shutdown"] = (200, "going")
    pod = Pod(tmp_path, daemon)
    life = await pod.begin()
    pod.stop.set()
    assert await life == PodExit(0, "the pod was stopped")
    assert daemon.asked == ["PUT /shutdown"]
    assert not any(name == "system_powerdown" for name, _ in pod.hypervisor.machine.calls)


async def test_foreign_guest_gets_power_button(tmp_path: Path, daemon: FakeGuestDaemon) -> None:
    daemon.answers["PUT /shutdown"] = (404, "there is no such thing")
    pod = Pod(tmp_path, daemon)
    life = await pod.begin()
    pod.stop.set()
    assert (await life).code == 0
    assert [name for name, _ in pod.hypervisor.machine.calls] == ["system_powerdown"]


async def test_a_guest_that_never_arrived_is_just_ended(tmp_path: Path, daemon: FakeGuestDaemon) -> None:
    pod = Pod(tmp_path, daemon, receives=True)
    pod.hypervisor.machine.answers["query-status"] = {"status": "inmigrate"}
    life = await pod.begin()
    assert json.loads((await pod.ask("GET", "/status")).body)["phase"] == "Receiving"
    pod.stop.set()
    assert (await life).code == 0
    assert daemon.asked == []


async def test_arrived_guest_is_ordinary(tmp_path: Path, daemon: FakeGuestDaemon) -> None:
    pod = Pod(tmp_path, daemon, receives=True)
    life = await pod.begin()
    pod.hypervisor.machine.answers["query-status"] = {"status": "running"}
    assert json.loads((await pod.ask("GET", "/status")).body)["phase"] == "Running"
    pod.hypervisor.machine.fail("over")
    await life


async def test_failed_start_ends_pod(tmp_path: Path, daemon: FakeGuestDaemon) -> None:
    pod = Pod(tmp_path, daemon)
    pod.hypervisor.fault = GuestError("no such machine")
    with pytest.raises(GuestError, match="no such machine"):
        await pod.runner.run(pod.stop, Seconds(1.0))
