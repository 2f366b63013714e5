"""The CPU limit of a VM's container follows the permit on a real kubelet, and the kernel holds a guest to it (B.10)."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from protocol.units import MilliCpu, Resources
from tests.kubernetes.real_kubernetes import eventually
from tests.kubernetes.requests.container_cpu import ContainerCpu
from tests.kubernetes.requests.real_pod import SMALL, RealPod
from tests.kubernetes.scheduling.books import PODS

pytestmark = pytest.mark.kubernetes
BESIDE_GUEST = MilliCpu(500)
GREEDY = 'all=; for each in 1 2 3; do (while :; do :; done) & all="$all $!"; done; sleep 40; kill $all'
"""A guest that ignores its size."""


@contextmanager
def greedy(real: RealPod) -> Iterator[None]:
    """Three busy loops in the guest's container."""
    command = real.cluster.kubectl_command("exec", f"--namespace={real.stage.name}", "db", "--", "sh", "-c", GREEDY)
    loops = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield
    finally:
        loops.kill()
        loops.wait()


def container(real: RealPod) -> ContainerCpu:
    return ContainerCpu.of(real.stage.get(PODS, "db")["metadata"]["uid"], "sleep")


def until_limited(real: RealPod, size: Resources) -> None:
    """Wait until the kernel limits the container to the VM's reservation plus QEMU's share."""
    cpu = container(real)
    eventually(lambda: cpu.limit == size.cpu + BESIDE_GUEST, f"it is limited to {size.cpu} and 500m", 30.0)


def is_held(cpu: ContainerCpu) -> None:
    """Asserts that the kernel stops the container, and that it uses no more than its limit."""
    limit, stopped = cpu.limit, cpu.times_throttled
    assert limit is not None
    with cpu.first():
        began, used = time.monotonic(), cpu.used
        time.sleep(5)
        share = (cpu.used - used) / (time.monotonic() - began)
    print(f"it uses {share:.2f} CPUs of {limit}")
    assert cpu.times_throttled > stopped
    assert share <= limit.value / 1000 * 1.1


def test_cpu_limit_follows_permit(real: RealPod) -> None:
    """A VM grows and shrinks in its pod: the limit is set before the permit, and a greedy guest gets no more."""
    assert container(real).limit is None
    real.programs.follow(True, limits=True)
    until_limited(real, SMALL)
    large = Resources.parse("700m", "1Gi")
    with greedy(real):
        is_held(container(real))
        began = time.monotonic()
        real.grows_to(large)
        print(f"it grew after {time.monotonic() - began:.2f} s")
        until_limited(real, large)
        is_held(container(real))
    assert real.agent.go_to(SMALL)
    real.until_small()
    until_limited(real, SMALL)


def test_disabled_limits_restrict_nothing(real: RealPod) -> None:
    """Kubernetes does not allow removing a limit, so it is raised above the VM's maximum."""
    real.programs.follow(True, limits=True)
    until_limited(real, SMALL)
    real.programs.follow(True)
    most = MilliCpu.parse(str(real.stage.get("virtualmachines", "db")["spec"]["guest"]["cpus"]["max"]))
    eventually(lambda: (container(real).limit or MilliCpu(0)) >= most, "the limit bars nothing", 30.0)
    real.grows_to(Resources.parse("900m", "1Gi"))
    assert real.agent.go_to(SMALL)
    real.until_small()
