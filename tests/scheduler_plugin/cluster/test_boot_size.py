"""The boot size in a pod's arguments."""

from __future__ import annotations

import json
from secrets import token_hex

import pytest

from protocol.units import ZERO
from protocol.vm_arguments import encode_dump
from scheduler_plugin.cluster.pods.reading import _use, decode_pod, decode_watched_pod, read_pod
from tests.scheduler_plugin.objects import Obj, vm_pod

GUEST: Obj = {"cpus": {"min": 1, "max": 4, "use": 3}, "memorySlots": {"min": 1, "max": 8, "use": 2}}
DUMP = encode_dump({"guest": GUEST})


def made_with(arguments: object, key: str = "args") -> Obj:
    pod = vm_pod("a")
    pod["spec"]["containers"] = [{"name": "neonvm-runner", key: arguments}]
    return pod


def test_our_pods_say_the_size_in_their_arguments() -> None:
    pod = made_with(["-vmspec", DUMP, "-vmstatus", "x"])
    facts = read_pod(pod)
    assert str(facts.boots_with) == "3 cpu, 2Gi"
    assert decode_pod(json.dumps(pod).encode()).boots_with == facts.boots_with
    seen = decode_watched_pod(json.dumps({"type": "ADDED", "object": pod}).encode())
    assert seen is not None
    assert seen.fact.boots_with == facts.boots_with


def test_long_arguments_are_read_but_not_remembered() -> None:
    long = encode_dump({"guest": GUEST, "nodeSelector": {str(key): token_hex(8) for key in range(400)}})
    before = _use.cache_info()
    assert str(read_pod(made_with(["-vmspec", long])).boots_with) == "3 cpu, 2Gi"
    assert _use.cache_info() == before


@pytest.mark.parametrize(
    "arguments",
    [
        None,
        [],
        "x",
        [7, None],
        ["-vmspec"],
        ["-vmspec", "x"],
        ["-vmspec", encode_dump({})],
        ["-vmspec", encode_dump({"guest": 1})],
        ["-vmspec", encode_dump({"guest": {"cpus": {"min": -1}}})],
    ],
)
def test_what_cannot_be_read_counts_nothing(arguments: object) -> None:
    assert read_pod(made_with(arguments)).boots_with == ZERO


def test_neonvms_pods_boot_with_their_least_memory() -> None:
    """Their controller writes the arguments behind the command."""
    assert read_pod(made_with(["runner", "-vmspec", DUMP], "command")).boots_with == ZERO


def test_a_migrations_target_boots_nothing() -> None:
    pod = made_with(["-vmspec", DUMP])
    pod["metadata"]["ownerReferences"] = [
        {
            "kind": "VirtualMachineMigration",
            "name": "m",
            "uid": "u",
            "apiVersion": "vm.neon.tech/v1",
            "controller": True,
        }
    ]
    pod["metadata"]["labels"] = {"vm.neon.tech/name": "a"}
    assert read_pod(pod).boots_with == ZERO
