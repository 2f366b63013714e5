"""Tokens that the scheduler accepts, and how soon it rejects an invalid one."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from protocol.names import TOKEN_AUDIENCE
from tests.conformance.cluster import done
from tests.kubernetes.real_kubernetes import eventually
from tests.kubernetes.scheduling.agents import Agent
from tests.kubernetes.scheduling.books import VMS
from tests.kubernetes.scheduling.stage import Stage

pytestmark = pytest.mark.kubernetes


@pytest.fixture
def agents(stage: Stage) -> list[Agent]:
    """Those of two VMs whose pods have nodes."""
    stage.node("n")
    pods = [stage.vm_pod(stage.vm(name), name) for name in ("one", "two")]
    stage.until_placed("one", "two")
    return [Agent.of(stage, pod) for pod in pods]


def review(stage: Stage, token: str) -> Any:
    body = {"spec": {"token": token, "audiences": [TOKEN_AUDIENCE]}}
    return done(stage.http.post("/apis/authentication.k8s.io/v1/tokenreviews", json=body))["status"]


def test_agent_acts_only_for_its_pod(stage: Stage, agents: list[Agent]) -> None:
    one, two = agents
    assert one.ask(1, 2)[0] == 200
    assert one.ask(1, 2, token=two.token)[0] == 403
    assert one.ask(1, 2, token="")[0] == 401
    assert one.ask(1, 2, token=stage.token(one.pod, audience="another"))[0] == 401
    unbound = stage.http.post(
        f"{stage.path('serviceaccounts', 'agent')}/token", json={"spec": {"audiences": [TOKEN_AUDIENCE]}}
    )
    assert one.ask(1, 2, token=done(unbound)["status"]["token"])[0] == 401


def test_other_accounts_get_no_pod_token(stage: Stage, agents: list[Agent]) -> None:
    assert stage.token(agents[0].pod, account="other") == ""
    stranger = stage.pod("stranger", "100m", "64Mi", serviceAccountName="other")
    assert agents[0].ask(1, 2, token=stage.token(stranger, account="other"))[0] == 403


def test_cached_token_of_deleted_pod_is_rejected(stage: Stage, agents: list[Agent]) -> None:
    """The API server caches its verdict on a token for ten seconds, and we for a minute."""
    one, _ = agents
    assert one.ask(1, 2)[0] == 200
    assert review(stage, one.token)["authenticated"]
    stage.delete_pods("one")
    assert review(stage, one.token).get("authenticated"), "it still knows it"
    eventually(lambda: one.ask(1, 2)[0] == 404, "we do not", 2.0)


def test_token_is_invalid_for_successor_pod(stage: Stage, agents: list[Agent]) -> None:
    one, _ = agents
    assert one.ask(1, 2)[0] == 200
    stage.delete_pods("one")
    successor = Agent.of(stage, stage.vm_pod(stage.get(VMS, "one"), "one"))
    stage.until_placed("one")
    eventually(lambda: successor.ask(1, 2)[0] == 200, "its own token is heard", 5.0)
    assert one.ask(1, 2)[0] == 403


def test_node_agent_token_ends_with_its_pod(stage: Stage, agents: list[Agent]) -> None:
    one, account = agents[0], {"metadata": {"name": "autoscaling-agent", "namespace": "kube-system"}}
    stage.programs.cluster.apply({"apiVersion": "v1", "kind": "ServiceAccount", **account})
    system = replace(stage, name="kube-system")
    pod = system.pod(stage.name, "100m", "64Mi", serviceAccountName="autoscaling-agent", nodeName=f"{stage.name}-n")
    token = system.token(pod, account="autoscaling-agent")
    eventually(lambda: one.ask(1, 2, token=token)[0] == 200, "it speaks for the VMs of its node", 5.0)
    system.delete_pods(stage.name)
    eventually(lambda: one.ask(1, 2, token=token)[0] == 404, "it does not any more", 2.0)
