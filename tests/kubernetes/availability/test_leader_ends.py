"""The leader is killed, terminated, stopped past its Lease or cut off: only the other replica continues (B.3).

Agents ask all the time. All versions of pods, VMs and Leases are recorded: from them it is counted whether a permit was
lost, promised twice, or written by a replica that did not hold the Lease.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import httpx2 as httpx
import pytest

from protocol.kubernetes.resources import LEASES as LEASE_KIND
from protocol.units import Resources
from tests.conformance.cluster import client_of
from tests.kubernetes.availability.replicated_programs import (
    ADDRESSES,
    NAME,
    NAMESPACE,
    ReplicatedPrograms,
    replicated,
)
from tests.kubernetes.real_kubernetes import RealKubernetes, eventually
from tests.kubernetes.scheduling.agents import Agent, Crowd
from tests.kubernetes.scheduling.books import VMS, Seen, broken_promises, overcommitted
from tests.kubernetes.scheduling.history import LEASES, History
from tests.kubernetes.scheduling.stage import Stage
from tests.scheduler_plugin.replicas.processes.terms_seen import TermsSeen
from tests.slowness import Slowness

pytestmark = pytest.mark.kubernetes
SMALL, LARGE = Resources.parse(1, "2Gi"), Resources.parse(4, "8Gi")
CROWD: Final = 3


@dataclass(frozen=True, slots=True)
class Blow:
    """A failure of the leader: signals to its ``parts``.

    Growth goes on within ``most`` seconds on an idle machine; ``waits`` of them pass by the clock on any.
    """

    name: str
    signal: signal.Signals
    most: float
    waits: float
    parts: tuple[str, ...] = ("services", "kube_schedulers")

    def __str__(self) -> str:
        return self.name

    def limit(self, slowness: float) -> float:
        """Seconds on a machine that is this many times slower than an idle one."""
        return self.waits + (self.most - self.waits) * slowness


@dataclass(frozen=True, slots=True)
class Times:
    """Seconds until growth and placement went on, and how many times slower than an idle one the machine was.

    ``steps`` are what the replicas say of the succession, in the same seconds.
    """

    growth: float
    placement: float
    slowness: float
    steps: dict[str, float]

    def __str__(self) -> str:
        steps = ", ".join(f"{step} after {seconds:.2f} s" for step, seconds in self.steps.items())
        return (
            f"growth after {self.growth:.1f} s, a new pod placed after {self.placement:.1f} s,"
            f" on a machine {self.slowness:.1f} times slower than an idle one ({steps})"
        )


BLOWS: Final = (
    Blow("SIGTERM", signal.SIGTERM, most=2.0, waits=0.5),
    Blow("kill -9", signal.SIGKILL, most=15.0, waits=10.0),
    Blow("kill -9 of the service alone", signal.SIGKILL, most=15.0, waits=10.0, parts=("services",)),
    Blow("SIGSTOP", signal.SIGSTOP, most=15.0, waits=10.0),
    Blow("cut off from the API server", signal.SIGSTOP, most=15.0, waits=10.0, parts=("ways",)),
)


@pytest.fixture(scope="module")
def programs(real_kubernetes: RealKubernetes, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ReplicatedPrograms]:
    with replicated(real_kubernetes, tmp_path_factory.mktemp("availability")) as both:
        yield both


@pytest.fixture
def stage(real_kubernetes: RealKubernetes, programs: ReplicatedPrograms) -> Iterator[Stage]:
    with client_of(real_kubernetes.kubeconfig) as api:
        programs.mend()
        made = Stage(api, programs, f"availability-{time.time_ns() % 100000}")
        made.set_up()
        yield made
        made.take_down()


def agent_on(stage: Stage, name: str, node: str) -> Agent:
    """The agent of a new VM on that node."""
    pod = stage.vm_pod(stage.vm(name), name, nodeSelector={"kubernetes.io/hostname": node})
    stage.until_placed(name)
    return Agent.of(stage, pod)


def is_granted(agent: Agent, size: Resources) -> bool:
    return agent.go_to(size) and size.within(agent.held)


def written_out_of_term(history: History, leases: History) -> list[str]:
    """The permits that were written while another process, or none, held the Lease."""
    seen = TermsSeen()
    for each in _in_order(leases):
        if each.found["metadata"]["name"] == NAME:
            seen.lease(each.found)
    for each in _in_order(history):
        if each.plural == VMS:
            seen.vm(each.found)
    return seen.out_of_term()


def _in_order(history: History) -> list[Seen]:
    return sorted(history.events, key=lambda each: each.revision)


def recording_of_leases(http: httpx.Client) -> History:
    return History(http, {LEASES: LEASE_KIND.path(NAMESPACE)})


@pytest.mark.parametrize("blow", BLOWS, ids=str)
def test_growth_and_placement_continue_after_failover(
    stage: Stage, programs: ReplicatedPrograms, blow: Blow, capsys: pytest.CaptureFixture[str]
) -> None:
    tight, roomy = stage.node("tight", "8500m", "33Gi"), stage.node("roomy", "16500m", "65Gi")
    agents = [agent_on(stage, f"db-{number}", tight) for number in range(CROWD)]
    measured, crowd = agent_on(stage, "measured", roomy), Crowd(agents, LARGE)
    assert is_granted(measured, LARGE)
    assert measured.go_to(SMALL)
    leader = programs.leader()
    (other,) = set(ADDRESSES) - {leader}
    with stage.history() as history, recording_of_leases(stage.http) as leases, crowd.asking():
        times = struck(stage, programs, blow, measured)
        assert programs.leader() == other
        programs.mend()
        assert (programs.leader(), programs.leads(leader), programs.leads(other)) == (other, False, True)
        before = programs.calls(leader), programs.calls(other)
        stage.pod("comes-later", nodeSelector={"kubernetes.io/hostname": roomy})
        stage.until_placed("comes-later")
        after = programs.calls(leader), programs.calls(other)
        assert [after[0] == before[0], after[1] == before[1]] == [True, False], "kube-scheduler asks the leader alone"
    measured.close()
    with capsys.disabled():
        print(f"\n{blow}: {times}")
    assert crowd.failures == []
    assert written_out_of_term(history, leases) == []
    assert overcommitted(history.events, stage.rooms) == []
    assert broken_promises(history.events, [held for agent in (*agents, measured) for held in agent.kept]) == []
    stage.until_books_agree()
    assert times.growth < blow.limit(times.slowness)


def struck(stage: Stage, programs: ReplicatedPrograms, blow: Blow, agent: Agent) -> Times:
    """Seconds from the failure until the agent's VM grows, and until a later pod gets a node."""
    leader = programs.leader()
    (other,) = set(ADDRESSES) - {leader}
    with Slowness() as slow:
        began, began_at = time.monotonic(), time.time()
        programs.strike(leader, blow.signal, blow.parts)
        stage.pod("comes", nodeSelector={"kubernetes.io/hostname": stage.placed()[agent.vm]})
        eventually(lambda: is_granted(agent, LARGE), "growth goes on", 60.0)
        growth = time.monotonic() - began
        stage.until_placed("comes", seconds=60.0)
        placement = time.monotonic() - began
    steps = programs.steps(leader, began_at) | programs.steps(other, began_at)
    return Times(growth, placement, slow.factor, steps)
