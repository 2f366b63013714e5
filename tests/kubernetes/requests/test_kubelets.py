"""Permits follow the kubelet: what it has allocated is permitted, and what it refuses is not (B.10)."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from protocol.units import Bytes, MilliCpu, Resources
from tests.kubernetes.real_kubernetes import VERSION, eventually
from tests.kubernetes.requests.grown import explained, requested, until_requested
from tests.kubernetes.requests.real_pod import SMALL, RealPod
from tests.kubernetes.scheduling.programs import Programs

pytestmark = pytest.mark.kubernetes
LITTLE, MUCH = MilliCpu(100), MilliCpu(300)


def of(cpu: MilliCpu) -> Resources:
    return Resources(cpu, Bytes.parse("1Gi"))


def test_permit_waits_for_the_kubelet(real: RealPod) -> None:
    waits = []
    for step in range(6):
        wanted = Resources.parse(f"{600 + 50 * step}m", "1Gi")
        began = time.monotonic()
        real.grows_to(wanted)
        waits.append(time.monotonic() - began)
        held = real.allocated()
        assert held is not None
        assert real.agent.held.within(held)
    print(f"growth with requests: median {statistics.median(waits):.3f} s, most {max(waits):.3f} s")
    assert real.agent.go_to(SMALL)
    real.until_small()


@contextmanager
def away(programs: Programs) -> Iterator[None]:
    """Without our service; afterwards it is back, with all that it follows."""
    programs.kill_service()
    yield
    programs.start_service()
    programs.until_ready()


def test_growth_resumes_after_competing_pod_leaves(
    real: RealPod,
) -> None:
    """The raise was sent by a service that was then killed, so the other pod certainly comes first."""
    real.beside("filler", real.free - LITTLE)
    wanted = of(SMALL.cpu + MUCH)
    with away(real.stage.programs):
        real.resize("db", "neonvm-runner", wanted.cpu, by="system:serviceaccount:kube-system:autoscaling-scheduler")
        real.until_pending("db", "Deferred")
    assert real.agent.go_to(wanted)
    assert real.agent.held.within(SMALL)
    until_requested(real.stage, "db", SMALL)
    assert "Deferred" in explained(real.stage, "db")["requestsProblem"]
    real.stage.delete_pods("filler")
    real.grows_to(wanted)
    assert requested(real.stage, "db") == real.allocated() == wanted


def test_foreign_deferred_resize_is_reverted(real: RealPod) -> None:
    """The service is stopped first, because it may revert the resize before the kubelet reports it as deferred."""
    real.beside("other", LITTLE)
    with away(real.stage.programs):
        real.resize("db", "neonvm-runner", real.allocatable)
        real.until_pending("db", "Deferred")
    real.until_small()
    assert real.withdrawn("Deferred") == 1
    real.grows_to(of(SMALL.cpu + LITTLE))
    assert explained(real.stage, "db")["requestsProblem"] is None


def test_infeasible_resize_blocks_nothing(real: RealPod) -> None:
    """The API server refuses it, or else the kubelet calls it infeasible and it is reverted."""
    answer = real.try_resize("db", "neonvm-runner", real.allocatable + LITTLE)
    if answer.is_success:
        real.until_small()
    else:
        assert (answer.status_code, "enough allocatable resources" in answer.text) == (403, True), answer.text
    real.grows_to(of(SMALL.cpu + LITTLE))


@pytest.mark.skipif(VERSION != "1.35", reason="from 1.36 on kubelets go by the node's object, as the API server does")
def test_infeasible_raise_is_explained_and_reverted(real: RealPod) -> None:
    """Our service believes the node's object, which says too much; the kubelet knows better."""
    booked, there = real.reserved, real.allocatable
    wanted, had = of(there + LITTLE), real.withdrawn("Infeasible")

    def is_refused() -> bool:
        real.overstate(there * 2)
        assert real.agent.go_to(wanted)
        assert real.agent.held == SMALL
        return "Infeasible" in (explained(real.stage, "db")["requestsProblem"] or "")

    eventually(is_refused, "the kubelet has called it infeasible", 60.0)
    real.until_small()
    assert real.withdrawn("Infeasible") == had + 1
    eventually(lambda: any("Infeasible" in each for each in real.told("GrowthDenied")), "the VM hears of it", 30.0)
    eventually(lambda: real.reserved == booked, "the book is what it was", 10.0)
    eventually(lambda: real.allocatable == there, "the node's object is right again", 30.0)
    real.grows_to(of(SMALL.cpu + LITTLE))
    assert explained(real.stage, "db")["requestsProblem"] is None


def test_deferred_resize_keeps_its_room(
    real: RealPod,
) -> None:
    real.beside("web", LITTLE)
    before, wish = real.reserved, real.free + MUCH
    real.resize("web", "main", wish)
    real.until_pending("web", "Deferred")
    eventually(lambda: real.reserved == before + wish - LITTLE, "the book holds the wish", 10.0)
    assert real.agent.go_to(of(SMALL.cpu + LITTLE))
    assert real.agent.held == SMALL
    assert explained(real.stage, "db")["deniedBy"] is not None
    real.resize("web", "main", LITTLE)
    eventually(lambda: real.reserved == before, "the wish is gone", 10.0)
    real.grows_to(of(SMALL.cpu + LITTLE))


def test_disabled_setting_restores_pod_requests(real: RealPod) -> None:
    real.grows_to(of(SMALL.cpu + LITTLE))
    real.programs.follow(False)
    until_requested(real.stage, "db", Resources.parse("100m", "16Mi"))
    assert real.agent.go_to(SMALL)
    real.programs.follow(True)
    real.until_small()
