"""Our service is killed, restarted and halted while agents ask, VMs change and pods come and go."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor
from typing import Final

import pytest

from protocol.units import Resources
from tests.kubernetes.real_kubernetes import eventually
from tests.kubernetes.scheduling.agents import Agent, Crowd
from tests.kubernetes.scheduling.books import broken_promises, overcommitted
from tests.kubernetes.scheduling.history import History
from tests.kubernetes.scheduling.stage import AT_ONCE, Stage

pytestmark = pytest.mark.kubernetes
BLOWS: Final = 8
ANSWERS: Final = 12
MOST: Final = Resources.parse(6, "12Gi")


@pytest.fixture
def agents(stage: Stage) -> list[Agent]:
    """Of six VMs on three nodes; each could have a whole node for itself."""
    for number in range(3):
        stage.node(f"n{number}", "8500m", "33Gi")
    names = [f"vm-{number}" for number in range(6)]
    pods = [stage.vm_pod(stage.vm(name), name) for name in names]
    stage.until_placed(*names)
    return [Agent.of(stage, pod) for pod in pods]


def test_faults_never_lose_or_overcommit(stage: Stage, agents: list[Agent]) -> None:
    chance, crowd = random.Random(7), Crowd(agents, MOST)
    with ThreadPoolExecutor(AT_ONCE) as hands, stage.history() as history, crowd.asking():
        for blow in range(BLOWS):
            until_answered(agents, ANSWERS)
            with crowd.still():
                chance.choice(agents).begin_anew()
            coming = [hands.submit(stage.pod, f"pod-{blow}-{number}") for number in range(4)]
            until_answered(agents, 1)
            strike(stage, blow)
            with crowd.still():
                names = [each.result()["metadata"]["name"] for each in coming]
                stage.programs.start_service()
                stage.programs.until_ready()
                stage.until_books_agree()
            stage.delete_pods(*names[1:])
        stage.delete_pods(*(f"pod-{blow}-0" for blow in range(BLOWS)))
        eventually(lambda: all(agent.is_heard for agent in agents), "every agent is heard in the end")
    assert crowd.failures == []
    assert_all_was_kept(stage, agents, history)


def test_late_requests_revoke_no_newer_permit(stage: Stage, agents: list[Agent]) -> None:
    """Our service hangs until agents and kube-scheduler have given up, and then receives all their requests."""
    crowd = Crowd(agents, MOST)
    with ThreadPoolExecutor(AT_ONCE) as hands, stage.history() as history, crowd.asking():
        until_answered(agents, ANSWERS)
        coming = [hands.submit(stage.pod, f"pod-{number}") for number in range(4)]
        stage.programs.halt_service()
        given_up = [agent.unanswered + 2 for agent in agents]
        eventually(lambda: all(a.unanswered >= b for a, b in zip(agents, given_up, strict=True)), "they give up")
        stage.programs.resume_service()
        until_answered(agents, 5 * ANSWERS)
        names = {each.result()["metadata"]["name"] for each in coming}
        eventually(lambda: names <= stage.placed().keys() | stage.refused().keys(), "kube-scheduler goes on as well")
    assert crowd.failures == []
    assert_all_was_kept(stage, agents, history)


def assert_all_was_kept(stage: Stage, agents: list[Agent], history: History) -> None:
    """At every revision of the API's store: use <= permit held <= permit stored, and all of that <= the node."""
    assert overcommitted(history.events, stage.rooms) == []
    assert broken_promises(history.events, [each for agent in agents for each in agent.kept]) == []


def until_answered(agents: list[Agent], times: int) -> None:
    """Returns once they have been answered so often from now on. One whose pod waits for a node has no part in it."""
    goal = sum(agent.answers for agent in agents) + times
    eventually(lambda: sum(agent.answers for agent in agents) >= goal, f"{times} answers")


def strike(stage: Stage, blow: int) -> None:
    """Ends our service: mostly as the kernel does that is out of memory, twice as a kubelet does, or both programs."""
    if blow % 4 == 1:
        stage.programs.stop_service()
        return
    stage.programs.kill_service()
    if blow % 4 == 3:
        stage.programs.kill_kube_scheduler()
        stage.programs.start_kube_scheduler()
