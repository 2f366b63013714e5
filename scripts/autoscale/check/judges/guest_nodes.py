"""Nodes and VMs: readiness, devices, networks and limits (pure)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from typing import Final

from deploy.neonvm.objects.pod_form import is_open
from deploy.neonvm.objects.runner_policy import selects_ingress
from protocol.kubernetes.conditions import condition_of
from protocol.kubernetes.objects import Json, JsonObject, child, flag, has_finished, items, labels_of, name_of, text
from scripts.autoscale.check.facts import CheckFacts, Observed, UnavailableError, require
from scripts.autoscale.check.finding import CheckProblem, CheckResult, CheckSection, Level, Verdict, When, check_of
from scripts.autoscale.check.installed_programs import DEVICES, NETWORK, installed

check = partial(check_of, CheckSection.NODES)
vm_check = partial(check_of, CheckSection.VMS)


def _unguarded(facts: CheckFacts, pods: Iterable[JsonObject]) -> str:
    """Names the namespaces in which no NetworkPolicy protects pods of VMs, as the end of a sentence."""
    if not isinstance(facts.network_policies, Observed):
        return ""
    unprotected = {
        name_of(pod).namespace
        for pod in pods
        if not any(_guards(policy, pod) for policy in facts.network_policies.value)
    }
    return f"; no NetworkPolicy also protects them in {', '.join(sorted(unprotected))}" if unprotected else ""


def _guards(policy: JsonObject, pod: JsonObject) -> bool:
    return name_of(policy).namespace == name_of(pod).namespace and selects_ingress(policy, labels_of(pod))


RESOURCES: Final = ("autoscaling.neon.tech/guest-devices", "neonvm/kvm")
"""The resources of device plugins: ours on every node, the original's only on nodes with KVM."""

FLAT_NETWORK: Final = "autoscaling.neon.tech/flat-network"
"""The resource of our network program on a node whose frames it filters."""

_OS: Final = "kubernetes.io/os"


@check("nodes-ready", "nodes are ready", "kubectl describe node {subject}", When.ALWAYS)
def are_ready(facts: CheckFacts) -> Verdict:
    """VMs on a node that is not ready keep running, but are neither resized nor moved."""
    nodes = facts.nodes.value
    problems = [
        CheckProblem(name_of(node).name, f"node {name_of(node).name} is not ready: {why}", Level.WARNING)
        for node in nodes
        if (why := _not_ready(node))
    ]
    if not nodes:
        return CheckProblem("", "the cluster has no nodes")
    if len(problems) == len(nodes):
        # Some nodes are often under maintenance, but if none is ready, nothing can run.
        problems = [replace(problem, level=Level.FAILURE) for problem in problems]
    return CheckResult(f"{len(nodes)} nodes", problems)


def _not_ready(node: Json) -> str:
    ready = condition_of(node, "Ready")
    if not ready:
        return "its kubelet has not reported yet"
    return "" if text(ready, "status") == "True" else text(ready, "message") or "its kubelet does not report"


def _for_guests(facts: CheckFacts) -> list[Json]:
    """Nodes to which pods of VMs can be scheduled."""
    return [
        node
        for node in facts.nodes.value
        if labels_of(node).get(_OS, "linux") == "linux"
        and not flag(node, "spec", "unschedulable")
        and not _not_ready(node)
        # Pods of VMs tolerate no taint by default; PreferNoSchedule is only a preference.
        and not any(text(taint, "effect") != "PreferNoSchedule" for taint in items(node, "spec", "taints"))
    ]


@check(
    "nodes-devices",
    "nodes offer devices for guests",
    "kubectl -n {namespace} get pods -l app.kubernetes.io/name=neonvm-devices --field-selector spec.nodeName={subject}",
)
def offer_devices(facts: CheckFacts) -> CheckResult:
    """VM pods request `autoscaling.neon.tech/guest-devices`, so none are scheduled to a node without it. The device
    plugin does not run there, or the kubelet uses another directory.
    """
    offered = {name_of(node).name: _offers(node, *RESOURCES) for node in _for_guests(facts)}
    # Without a device plugin no pod requests the device; guests are emulated on purpose.
    if DEVICES not in installed(facts) and not any(offered.values()):
        raise UnavailableError(f"the device plugin ({DEVICES}) is not installed; guests are emulated")
    level = Level.WARNING if any(offered.values()) else Level.FAILURE
    problems = [
        CheckProblem(
            node, f"node {node} offers no {RESOURCES[0]}: VM pods are not scheduled there, or have no KVM", level
        )
        for node, has in offered.items()
        if not has
    ]
    return CheckResult(f"{len(offered)} nodes", problems)


def _offers(node: Json, *resources: str) -> bool:
    amounts = child(node, "status", "allocatable")
    # A node whose device plugin is gone keeps the resource with an amount of 0.
    return any(str(amounts.get(resource, "0")) not in ("0", "") for resource in resources)


@check(
    "nodes-network",
    "nodes offer the flat network",
    "kubectl -n {namespace} logs -l app.kubernetes.io/name=neonvm-network --prefix",
)
def offer_network(facts: CheckFacts) -> CheckResult:
    """Pods of VMs with `spec.extraNetwork` request `autoscaling.neon.tech/flat-network`. A node that does not offer it
    cannot filter frames: its kernel lacks nftables for bridges, or the kubelet uses another directory. The log says
    which.
    """
    if NETWORK not in installed(facts):
        raise UnavailableError(f"the flat network ({NETWORK}) is not installed")
    nodes = _for_guests(facts)
    reason = f"offers no {FLAT_NETWORK}: VMs with spec.extraNetwork are not scheduled there"
    names = [name_of(node).name for node in nodes if not _offers(node, FLAT_NETWORK)]
    level = Level.FAILURE if len(names) == len(nodes) else Level.WARNING
    return CheckResult(f"{len(nodes)} nodes", [CheckProblem(name, f"node {name} {reason}", level) for name in names])


@check(
    "nodes-accelerate",
    "guests run on KVM",
    "docs/vms-on-kubernetes.md explains each message; to keep VMs off such nodes, give the VMs a nodeSelector",
)
def accelerate(facts: CheckFacts) -> CheckResult:
    """VMs on this node report in their condition `Accelerated` that they are emulated, and why."""
    acceleration: dict[str, tuple[bool, str]] = {}
    for vm in facts.vms.value:
        condition = condition_of(vm, "Accelerated")
        # A VM with acceleration disabled says nothing about its node.
        if not condition or child(vm, "spec").get("enableAcceleration") is False or not text(vm, "status", "node"):
            continue
        # One VM per node is enough: all use the same /dev/kvm.
        acceleration[text(vm, "status", "node")] = (text(condition, "status") == "True", text(condition, "message"))
    require(acceleration, "no VM has the condition Accelerated yet")
    problems = [
        CheckProblem(node, f"guests on node {node} are emulated, which is many times slower: {why}", Level.WARNING)
        for node, (is_fast, why) in sorted(acceleration.items())
        if not is_fast
    ]
    return CheckResult(f"on {len(acceleration)} nodes", problems)


@vm_check("vms-network", "VMs have flat-network addresses", "kubectl -n {namespace} logs daemonset/neonvm-network")
def has_pods_network(facts: CheckFacts) -> CheckResult:
    """A VM with `spec.extraNetwork.enable` runs without `status.extraNetIP`: a move would break its connections."""
    wants = [vm for vm in facts.vms.value if flag(vm, "spec", "extraNetwork", "enable")]
    require(wants, "no VM enables spec.extraNetwork")
    without_address = [
        str(name_of(vm))
        for vm in wants
        if text(vm, "status", "phase") == "Running" and not text(vm, "status", "extraNetIP")
    ]
    problems = [
        CheckProblem(vm, f"VM {vm} runs without a flat-network address (status.extraNetIP)") for vm in without_address
    ]
    return CheckResult(f"{len(wants)} VMs have one", problems)


@vm_check(
    "vms-limits",
    "VM pods have no limits below their VM's maximum",
    "raise or remove the limit, then delete the pod when convenient; kubectl get limitranges -A",
)
def may_grow(facts: CheckFacts) -> CheckResult:
    """A limit of the pod (from `spec.podResources.limits`, the default of a LimitRange, or a webhook) is below the VM's
    maximum plus QEMU's own memory. The VM does not grow beyond it, because the kubelet would kill QEMU.
    """
    running = [vm for vm in facts.vms.value if text(vm, "status", "phase") == "Running"]
    require(running, "no VM is running")
    problems = [
        CheckProblem(
            str(name_of(vm)),
            f"VM {name_of(vm)} cannot grow to its maximum: {text(condition, 'message')}",
            Level.WARNING,
        )
        for vm in running
        for condition in items(vm, "status", "conditions")
        if (text(condition, "type"), text(condition, "status")) == ("LimitedByPod", "True")
    ]
    return CheckResult(f"{len(running)} running VMs", problems)


@vm_check(
    "vms-closed",
    "VM pods accept only their controller",
    "restart the VM of pod {subject}; until then: kubectl apply -n NAMESPACE -f deploy/kubernetes/neonvm-policy.yaml",
)
def are_closed(facts: CheckFacts) -> CheckResult:
    """A pod created by NeonVM's controller, or by our releases before 0.3.0, accepts anyone who reaches its ports.
    The VM's next pod requires a certificate; until then our controller resizes the VM but does not migrate it. A
    NetworkPolicy is a second barrier, which our controller maintains unless the chart value `neonvm.policy.enabled` is
    false.
    """
    pods = [pod for pod in facts.vm_pods.value if not has_finished(pod)]
    problems = [
        CheckProblem(
            str(name_of(pod)),
            f"pod {name_of(pod)} accepts anyone on ports 20183 and 25183, who can then resize and migrate its VM;"
            " NeonVM's controller or an older release created it",
            Level.WARNING,
        )
        for pod in pods
        if is_open(pod)
    ]
    return CheckResult(f"{len(pods) - len(problems)} pods require a certificate{_unguarded(facts, pods)}", problems)
