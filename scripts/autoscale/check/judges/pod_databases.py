"""Postgres in pods: whether pods that have opted in can be resized in place (pure)."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Final

from protocol.kubernetes.objects import (
    Json,
    annotations_of,
    child,
    has_finished,
    items,
    name_of,
    node_of,
    pod_phase,
    text,
)
from protocol.names import ANNOTATION_BOUNDS, ANNOTATION_CNPG_POD_SPEC, ANNOTATION_FIRST_REQUESTS
from protocol.pod_database import is_pod_database, objection_of, parse_pod_database
from protocol.virtual_machine import InvalidObjectError
from scripts.autoscale.check.facts import CheckFacts, Observed, require
from scripts.autoscale.check.finding import CheckProblem, CheckResult, CheckSection, Level, Verdict, When, check_of
from scripts.autoscale.check.installed_programs import AGENT, containers, installed, pods_of
from scripts.autoscale.check.judges.api_server import minor_of

check = partial(check_of, CheckSection.PODS)

CGROUP_ROOT: Final = "CGROUP_ROOT"
"""The environment variable with which an agent serves postgres in pods."""

LEAST: Final = (1, 33)
"""The first kubelet that resizes pods by default."""

LEAST_FOR_SHRINKING: Final = (1, 34)
"""The first kubelet that lowers a memory limit in place."""

_POLICIES: Final = (("cpuManagerPolicy", "static"), ("memoryManagerPolicy", "Static"))
"""Fields of a kubelet's configuration, and the values with which it does not resize Guaranteed pods."""


def opted_in(facts: CheckFacts) -> list[Json]:
    """Pods that have opted in and have not ended. Raises ``UnavailableError``, also if there are none."""
    pods = [pod for pod in facts.database_pods.value if is_pod_database(pod) and not has_finished(pod)]
    require(pods, "no pod has opted in")
    return pods


@check(
    "pods-resize",
    "the cluster resizes pods in place",
    "kubectl get --raw /api/v1 | grep pods/resize; kubectl get nodes; docs/postgres-in-pods.md lists versions",
    When.ALWAYS,
)
def can_resize(facts: CheckFacts) -> Verdict:
    """Resizing in place needs `pods/resize` in the API server and in the kubelet of every node with a postgres pod:
    Kubernetes 1.33, and 1.34 to lower memory. Kubelets with a static CPU or memory manager do not resize Guaranteed
    pods; the check finds those if you may `get nodes/proxy`.
    """
    pods = opted_in(facts)
    names = [text(resource, "name") for resource in items(facts.core_api.value, "resources")]
    if "pods/resize" not in names:
        return CheckProblem("", "the API server does not offer pods/resize")
    nodes = {node for pod in pods if (node := node_of(pod))}
    versions = {
        name_of(node).name: text(node, "status", "nodeInfo", "kubeletVersion")
        for node in facts.nodes.value
        if name_of(node).name in nodes
    }
    problems = [problem for node, version in sorted(versions.items()) for problem in _too_old(node, version)]
    return CheckResult(f"{len(nodes)} nodes", [*problems, *_pinned(facts, pods)])


def _too_old(node: str, version: str) -> Iterator[CheckProblem]:
    minor = minor_of(version)
    if minor is None or minor >= LEAST_FOR_SHRINKING:
        return
    kubelet = f"the kubelet of node {node} is {version}"
    if minor < LEAST:
        yield CheckProblem(node, f"{kubelet}; resizing pods in place needs 1.33")
    else:
        yield CheckProblem(node, f"{kubelet}; lowering memory in place needs 1.34", Level.WARNING)


def _pinned(facts: CheckFacts, pods: list[Json]) -> Iterator[CheckProblem]:
    """Problems of nodes whose kubelets do not resize Guaranteed pods, if their configurations could be read."""
    for node in sorted({node_of(pod) for pod in pods if is_guaranteed(pod)}):
        observation = facts.kubelets.get(node)
        settings = observation.value if isinstance(observation, Observed) else {}
        for name, value in _POLICIES:
            if text(settings, "kubeletconfig", name) == value:
                what = f"the kubelet of node {node} has {name}: {value}"
                advice = (
                    "resizes of Guaranteed pods are Infeasible: give postgres a CPU limit above its request, or none"
                )
                yield CheckProblem(node, f"{what}, so {advice}", Level.WARNING)


def is_guaranteed(pod: Json) -> bool:
    """Return True if the pod is on a node and its QoS class is Guaranteed."""
    return bool(node_of(pod)) and text(pod, "status", "qosClass") == "Guaranteed"


@check(
    "pods-agents",
    "postgres pods have an agent",
    "set pods.enabled=true in the chart's values and upgrade the release; kubectl -n {namespace} get pods -o wide"
    " -l app.kubernetes.io/name=autoscaling-agent",
)
def have_agents(facts: CheckFacts) -> Verdict:
    """The agent of a node serves pods with the label `autoscaling.neon.tech/enabled: "true"` if the chart was installed
    with `pods.enabled`. On a node without a running agent pods keep their size.
    """
    pods = opted_in(facts)
    if not _serves_pods(child(installed(facts).get(AGENT, {}), "spec", "template")):
        return CheckProblem(AGENT, f"{len(pods)} pods have opted in, but no agent serves pods (pods.enabled)")
    served = {node_of(pod) for pod in pods_of(facts, AGENT) if pod_phase(pod) == "Running"}
    problems = [
        CheckProblem(str(name_of(pod)), f"pod {name_of(pod)} has no agent: none runs on node {node_of(pod)}")
        for pod in pods
        if node_of(pod) and node_of(pod) not in served
    ]
    return CheckResult(f"{len(pods)} pods", problems)


def _serves_pods(template: Json) -> bool:
    variables = (variable for container in containers(template) for variable in items(container, "env"))
    return any(text(variable, "name") == CGROUP_ROOT for variable in variables)


@check(
    "pods-readable",
    "postgres pods can be resized",
    "kubectl describe pod {subject}; docs/postgres-in-pods.md explains each refusal",
    When.ALWAYS,
)
def can_be_read(facts: CheckFacts) -> CheckResult:
    """A pod has opted in, but a resize would restart postgres or is impossible, or nothing defines its minimum: the
    line says what to set. Events `NotResized` on pods also name other autoscalers and operators that would change the
    size.
    """
    pods = opted_in(facts)
    problems = [
        CheckProblem(f"-n {name_of(pod).namespace} {name_of(pod).name}", f"pod {name_of(pod)}: {why}", Level.WARNING)
        for pod in pods
        if (why := _refusal(pod) or _no_minimum(pod))
    ]
    return CheckResult(f"{len(pods)} pods", problems)


def _refusal(pod: Json) -> str:
    try:
        parse_pod_database(pod)
    except InvalidObjectError as error:
        return str(error)
    return ""


def _no_minimum(pod: Json) -> str:
    notes = annotations_of(pod)
    is_known = (
        notes.keys() & {ANNOTATION_FIRST_REQUESTS, ANNOTATION_CNPG_POD_SPEC} or '"min"' in notes[ANNOTATION_BOUNDS]
    )
    return "" if is_known else "its minimum is what it requests now, so it never shrinks: add min to its bounds"


@check("pods-resized", "kubelets apply resizes", "autoscale explain pod/NAME; kubectl describe pod {subject}")
def are_resized(facts: CheckFacts) -> CheckResult:
    """A kubelet has not applied the last resize: `Deferred` (the node has no room now), `Infeasible` (it never can) or
    `Error` (often because the memory is in use). The agent withdraws a resize that fails; one that remains was
    requested by another client.
    """
    pods = opted_in(facts)
    problems = [
        CheckProblem(f"-n {name_of(pod).namespace} {name_of(pod).name}", f"pod {name_of(pod)}: {why}", Level.WARNING)
        for pod in pods
        if (why := objection_of(pod))
    ]
    return CheckResult("", problems)
