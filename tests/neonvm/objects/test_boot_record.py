"""The size range with which a guest booted, from its pod."""

from __future__ import annotations

from secrets import token_hex

import pytest

from deploy.neonvm.objects.boot_record import boot_record, spec_at_boot
from protocol.kubernetes.objects import Json, child
from protocol.running_machine import RunningMachine
from protocol.units import Bytes, MilliCpu
from protocol.vm_arguments import ArgumentsError, encode_dump
from tests.neonvm.sample_objects import GI, made_with, virtual_machine

MACHINE = RunningMachine(MilliCpu(4000), Bytes(GI), Bytes(8 * GI))
SPEC = child(virtual_machine(), "spec")
DUMP = encode_dump(SPEC)


def pod(*words: str, key: str = "command", name: str = "neonvm-runner") -> Json:
    return {"spec": {"containers": [{"name": "sidecar"}, {"name": name, key: list(words)}]}}


def test_own_pods_record_their_spec() -> None:
    made = boot_record({"spec": {"containers": made_with(virtual_machine())}})
    assert made is not None
    assert (made.machine, made.plugs_cpus) == (MACHINE, False)
    assert (made.runner_port, made.qmp_port) == (25183, 20183)
    assert spec_at_boot({"spec": {"containers": made_with(virtual_machine())}}) == SPEC


def test_long_arguments_are_read() -> None:
    spec = {**SPEC, "qmp": 1, "runnerPort": 2, "nodeSelector": {str(key): token_hex(8) for key in range(400)}}
    made = boot_record(pod("-vmspec", encode_dump(spec)))
    assert made is not None
    assert (made.machine, made.runner_port, made.qmp_port) == (MACHINE, 2, 1)


@pytest.mark.parametrize("words", [("-vmspec", DUMP), (f"-vmspec={DUMP}", "-vmstatus", ""), ("-x", "-vmspec", DUMP)])
@pytest.mark.parametrize("key", ["command", "args"])
def test_forms_of_arguments(words: tuple[str, ...], key: str) -> None:
    made = boot_record(pod(*words, key=key))
    assert made is not None
    assert made.machine == MACHINE


@pytest.mark.parametrize(
    ("flags", "mode", "plugs"),
    [
        (("-cpu-scaling-mode", "QmpScaling"), None, True),
        (("-cpu-scaling-mode", "SysfsScaling"), "QmpScaling", False),
        ((), "QmpScaling", True),
        ((), None, False),
    ],
)
def test_cpu_mode_is_that_of_the_runner(flags: tuple[str, ...], mode: str | None, plugs: bool) -> None:
    """If the spec omits the mode, NeonVM's controller decides it and passes it to its runner."""
    spec = {**SPEC, **({"cpuScalingMode": mode} if mode else {})}
    made = boot_record(pod(*flags, "-vmspec", encode_dump(spec)))
    assert made is not None
    assert made.plugs_cpus is plugs


@pytest.mark.parametrize(
    "found",
    [
        {},
        pod(),
        pod("-vmspec"),
        pod("-vmspec", "not base64"),
        pod("-vmspec", encode_dump({"guest": {"cpus": {"min": 0}}})),
        pod("-vmspec", DUMP, name="another"),
        {"spec": {"containers": [{"name": "neonvm-runner", "args": "-vmspec"}]}},
    ],
)
def test_pod_that_does_not_say_it(found: Json) -> None:
    assert boot_record(found) is None


@pytest.mark.parametrize("found", [{}, pod("-vmspec", "not base64")])
def test_pod_without_a_readable_spec(found: Json) -> None:
    with pytest.raises(ArgumentsError):
        spec_at_boot(found)
