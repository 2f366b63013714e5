"""Arguments of a runner pod, from our controller and from NeonVM's."""

from __future__ import annotations

import base64
import gzip
import json
from pathlib import Path

import pytest

from deploy.neonvm.objects.vm_spec import runner_ports
from deploy.neonvm.ports import GuestSpec
from deploy.neonvm.runner.runner_arguments import RunnerArguments, guest_spec, parse_arguments
from protocol.kubernetes.objects import Json
from protocol.messages import ObjectName
from protocol.units import Bytes, MilliCpu
from protocol.vm_arguments import MAX_BYTES, ArgumentsError, encode_dump

GI = 1024**3
SPEC: Json = {
    "guest": {
        "cpus": {"min": "500m", "max": 4, "use": 2},
        "memorySlots": {"min": 1, "max": 8, "use": 2},
        "ports": [{"port": 5432}, {"port": 9100}, {"port": 53, "protocol": "UDP"}],
        "appendKernelCmdline": "autoscale.primary=10.0.0.1",
    },
    "extraNetwork": {"enable": True},
}
ENVIRONMENT = {"K8S_POD_NAME": "db-x7k2p", "VM_NAME": "db", "VM_NAMESPACE": "shop", "POD_UID": "u1"}


def told(spec: Json | None = None, status: Json | None = None, **environment: str) -> RunnerArguments:
    given = ["-vmspec", encode_dump(spec or SPEC), "-vmstatus", encode_dump(status or {"extraNetIP": "10.100.128.7"})]
    return parse_arguments(given, {**ENVIRONMENT, **environment})


def guest(found: RunnerArguments, tap: int | None = 9) -> GuestSpec:
    return guest_spec(found, Path("/vm/images"), Path("/run/neonvm"), tap, 1400)


def test_our_controller_names_the_vm_and_the_pod() -> None:
    found = told()
    assert (str(found.vm), str(found.pod), found.receives) == ("shop/db", "shop/db-x7k2p", False)
    assert (found.address, found.grace, found.kernel_arguments) == ("10.100.128.7", 30, "autoscale.primary=10.0.0.1")


def test_the_arguments_of_neonvms_own_controller_are_understood() -> None:
    dump = base64.b64encode(gzip.compress(json.dumps({**SPEC, "terminationGracePeriodSeconds": 5}).encode())).decode()
    more = ["-skip-cgroup-management", "-qemu-disk-cache-settings", "cache=none", "-memhp-auto-movable-ratio", "301"]
    given = [*more, "-vmspec", dump, "-vmstatus", encode_dump({}), "-cpu-scaling-mode", "SysfsScaling"]
    found = parse_arguments(given, {"K8S_POD_NAME": "db-x7k2p", "RECEIVE_MIGRATION": "true"})
    assert (str(found.vm), found.grace, found.receives, found.address) == ("default/db", 5, True, "")


def test_guest_has_flat_network_and_pod_ports() -> None:
    found = guest(told())
    assert (found.cpu_max, found.cpu_use) == (MilliCpu(4000), MilliCpu(2000))
    assert (found.mem_min, found.mem_use, found.mem_max) == (Bytes(GI), Bytes(2 * GI), Bytes(8 * GI))
    pods = "0.0.0.0:9100=9100,0.0.0.0:5432=5432"
    loopback = "127.0.0.1:25184=25183,127.0.0.1:25185=25185,127.0.0.1:10301=10301"
    assert found.network.attachments == ("fd:9", f"ports:{pods},{loopback}")
    assert (found.address, found.network.mtu, found.network.guest_host) == ("10.100.128.7", 1400, "127.0.0.1")
    assert (found.vm, len(found.monitors), found.console) == (ObjectName("shop", "db"), 4, Path("/run/neonvm/console"))


def test_vm_without_flat_network_has_only_link() -> None:
    found = guest(told({**SPEC, "extraNetwork": {"enable": False}}), None)
    assert (found.address, len(found.network.attachments)) == ("", 1)


@pytest.mark.parametrize(
    ("more", "forwards"),
    [
        ({"guest": {**SPEC["guest"], "ports": [{"port": 10301}]}}, "0.0.0.0:10301=10301"),  # type: ignore[dict-item]
        ({"runnerPort": 10301, "guest": {**SPEC["guest"], "ports": []}}, ""),  # type: ignore[dict-item]
    ],
    ids=["the VM names its port", "the runner's own API is there"],
)
def test_the_monitor_is_forwarded_once(more: Json, forwards: str) -> None:
    found = [each for each in guest(told({**SPEC, **more})).network.attachments[1].split(",") if "10301" in each]
    assert found == ([forwards] if forwards else [])


def test_the_runners_ports_are_not_the_guests() -> None:
    assert runner_ports({}) == (25183, 20183)
    assert runner_ports({"runnerPort": 1, "qmp": 2}) == (1, 2)
    taken = {**SPEC, "guest": {**SPEC["guest"], "ports": [{"port": 20187}]}}  # type: ignore[dict-item]
    with pytest.raises(ArgumentsError, match=r"spec\.guest\.ports: port 20187 is reserved for the runner"):
        guest(told(taken))


@pytest.mark.parametrize("dump", ["", "*", base64.b64encode(b"no gzip").decode(), encode_dump({})[:-8]])
def test_a_specification_that_cannot_be_read_is_refused(dump: str) -> None:
    with pytest.raises(ArgumentsError, match="cannot decode"):
        parse_arguments(["-vmspec", dump], ENVIRONMENT)


def test_oversized_specification_is_refused() -> None:
    bomb = base64.b64encode(gzip.compress(b" " * (MAX_BYTES + 1))).decode()
    with pytest.raises(ArgumentsError, match="more than"):
        parse_arguments(["-vmspec", bomb], ENVIRONMENT)


def test_guest_knows_its_storage_limit() -> None:
    """As the kubelet writes it; NeonVM's controller passes none."""
    assert guest(told(EPHEMERAL_STORAGE="10737418240")).storage_limit == Bytes(10 * GI)
    assert guest(told()).storage_limit == Bytes(0)


def test_invalid_pod_or_vm_is_refused() -> None:
    with pytest.raises(ArgumentsError, match="K8S_POD_NAME"):
        parse_arguments(["-vmspec", encode_dump(SPEC)], {})
    with pytest.raises(ArgumentsError, match=r"spec\.guest\.cpus"):
        guest(told({"guest": {"cpus": {"min": 4, "max": 1}, "memorySlots": {"min": 1}}}))
