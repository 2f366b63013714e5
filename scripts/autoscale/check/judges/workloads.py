"""Our programs: their pods, their versions, and other autoscalers that do the same work (pure)."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Final

from packaging.version import InvalidVersion, Version

from deploy.local.kubernetes.plan.installation_plan import last_exit_reason
from protocol.kubernetes.conditions import condition_of
from protocol.kubernetes.objects import Json, child, integer, items, labels_of, name_of, pod_phase, text
from scripts.autoscale.check.facts import CheckFacts, Unavailable, UnavailableError
from scripts.autoscale.check.finding import CheckProblem, CheckResult, CheckSection, Level, Verdict, When, check_of
from scripts.autoscale.check.installed_programs import (
    AGENT,
    AGENT_CONTAINERS,
    KUBE_SCHEDULER,
    PROGRAMS,
    SCHEDULER,
    VERSION_LABEL,
    containers,
    image_tag,
    installed,
    pods_of,
    program_of,
    sidecar_pods,
    why_unscheduled,
)

check = partial(check_of, CheckSection.PARTS)

# The kubelet's reasons of a waiting container.
_PULLS: Final = frozenset({"ErrImageNeverPull", "ErrImagePull", "ImagePullBackOff", "InvalidImageName"})
_NOT_YET: Final = frozenset({"ContainerCreating", "PodInitializing"})
ORIGINALS: Final = (("Deployment", "autoscale-scheduler"), ("DaemonSet", "autoscaler-agent"))
"""The programs of the original project, which serve the same pods and size the same VMs."""


@check(
    "programs-installed",
    "the programs are installed",
    "kubectl get deployments --all-namespaces -l app.kubernetes.io/name=autoscaling-scheduler",
)
def has_scheduler(facts: CheckFacts) -> Verdict:
    """The namespace has no scheduler. The check finds an installation in another namespace if it is the only one."""
    here = installed(facts)
    if SCHEDULER not in here:
        return CheckProblem("", f"Deployment {SCHEDULER} not found in namespace {facts.namespace}")
    return CheckResult(f"{', '.join(sorted(here))} in namespace {facts.namespace}")


@check("programs-images", "images can be pulled", "kubectl -n {namespace} describe pod {subject}")
def images_pullable(facts: CheckFacts) -> CheckResult:
    """A container waits for its image: wrong name or tag, unreachable registry, or missing credentials."""
    problems = [
        CheckProblem(
            name_of(pod).name, f"container {text(state, 'name')} of pod {name_of(pod).name} cannot pull {image}"
        )
        for program in PROGRAMS
        for pod in pods_of(facts, program.name)
        for state in _states(pod)
        if text(state, "state", "waiting", "reason") in _PULLS
        for image in [f"{text(state, 'image')}: {_waiting(state)}"]
    ]
    return CheckResult("", problems)


@check(
    "programs-run",
    "every program's pods are running",
    "kubectl -n {namespace} get pods; kubectl -n {namespace} logs {subject} --all-containers --previous",
)
def programs_run(facts: CheckFacts) -> CheckResult:
    """A pod has no node or is crash-looping (the line quotes its last output), or fewer pods are ready than desired."""
    problems, reported = list[CheckProblem](), set[str]()
    for pod in (candidate for program in PROGRAMS for candidate in pods_of(facts, program.name)):
        reasons = list(_problems(pod))
        # Another check reports a missing image, so do not report the program again.
        if reasons or any(text(state, "state", "waiting", "reason") in _PULLS for state in _states(pod)):
            reported.add(program_of(pod))
        problems += [CheckProblem(name_of(pod).name, f"pod {name_of(pod).name}: {reason}") for reason in reasons]
    for name, workload in installed(facts).items():
        # A pod's problem explains why too few pods are ready.
        if name not in reported:
            problems += _unfinished(facts, name, workload)
    return CheckResult("", problems)


def _failed(facts: CheckFacts, program: str) -> list[CheckProblem]:
    """Problems of the program's failed pods."""
    # Failed pods may stay for weeks, so this matters only if the program lacks pods.
    failed = [pod for pod in facts.pods.value if program_of(pod) == program and pod_phase(pod) == "Failed"]
    reasons = {name_of(pod).name: text(pod, "status", "message") or text(pod, "status", "reason") for pod in failed}
    return [CheckProblem(pod, f"pod {pod} failed: {why}") for pod, why in reasons.items()]


def _states(pod: Json) -> Iterator[Json]:
    yield from items(pod, "status", "initContainerStatuses")
    yield from items(pod, "status", "containerStatuses")


def _waiting(state: Json) -> str:
    waiting = child(state, "state", "waiting")
    return text(waiting, "message") or text(waiting, "reason")


def _problems(pod: Json) -> Iterator[str]:
    """Yields the reasons why the pod does not work."""
    for state in _states(pod):
        reason = text(state, "state", "waiting", "reason")
        if reason == "CrashLoopBackOff":
            restarts, why = integer(state, "restartCount"), last_exit_reason(state)
            yield f"container {text(state, 'name')} restarted {restarts} times: {why}"
        # Another check reports a missing image; the other reasons are normal while a pod starts.
        elif reason and reason not in _PULLS | _NOT_YET:
            yield f"container {text(state, 'name')} cannot start: {_waiting(state)}"
    if why := why_unscheduled(pod):
        yield f"not scheduled: {why}"


def _unfinished(facts: CheckFacts, name: str, workload: Json) -> list[CheckProblem]:
    status = child(workload, "status")
    # Only the status of a DaemonSet has this field.
    if "desiredNumberScheduled" in status:
        desired, ready = integer(status, "desiredNumberScheduled"), integer(status, "numberReady")
    else:
        desired, ready = integer(workload, "spec", "replicas"), integer(status, "readyReplicas")
        if not desired:
            return [CheckProblem(name, f"{name} is scaled to 0 replicas")]
    # ReplicaFailure: a quota or an admission plugin refuses the pods.
    refusal = condition_of(workload, "ReplicaFailure")
    if ready < desired or refusal:
        why = f": {text(refusal, 'message')}" if refusal else ""
        message = f"{name} has {ready} of {desired} pods ready{why}"
        return [CheckProblem(name, message), *_failed(facts, name)]
    return []


@check(
    "programs-versions",
    "versions are compatible",
    "upgrade the scheduler first, then the agents; VM pods get the new sidecar when they are recreated",
)
def versions_fit(facts: CheckFacts) -> CheckResult:
    """Upgrade the scheduler first: agents may be one minor release behind it, never ahead. The check compares the label
    `app.kubernetes.io/version`, or the tag of the image.
    """
    scheduler, agents = _newest(facts, SCHEDULER), dict[str, Version]()
    # Without permission to list pods of VMs, only the agents of nodes are compared.
    sidecars = [] if isinstance(facts.vm_pods, Unavailable) else sidecar_pods(facts)
    for pod in (*pods_of(facts, AGENT), *sidecars):
        if (agent_version := _version(pod, AGENT_CONTAINERS)) is not None:
            agents[str(name_of(pod))] = agent_version
    problems = [
        CheckProblem(pod, f"the agent in pod {pod} is {agent}, the scheduler {scheduler}: {why}", Level.WARNING)
        for pod, agent in agents.items()
        if (why := _mismatch(agent, scheduler))
    ]
    own = _read_version(facts.release)
    if own is not None and (why := _far(own, scheduler)):
        problems.append(
            CheckProblem("autoscale", f"this command is {own}, the scheduler {scheduler}: {why}", Level.WARNING)
        )
    return CheckResult(f"scheduler {scheduler}" + (f", {len(agents)} compatible agents" if agents else ""), problems)


def _newest(facts: CheckFacts, program: str) -> Version:
    pods = pods_of(facts, program)
    versions = [version for pod in pods if (version := _version(pod, ("service",))) is not None]
    if not versions:
        tags = sorted(
            {
                image_tag(text(container, "image"))
                for pod in pods
                for container in containers(pod)
                if text(container, "name") != KUBE_SCHEDULER
            }
        )
        raise UnavailableError(f"the image tag of {program}, {', '.join(tags) or '(none)'}, is not a version")
    # During a rolling update both versions run; the newer one is going to lead.
    return max(versions)


def _version(pod: Json, names: tuple[str, ...]) -> Version | None:
    """The version in the label of one of our own pods, else the image's tag."""
    tags = [image_tag(text(container, "image")) for container in containers(pod) if text(container, "name") in names]
    # In a VM's pod the label is set by the pod's creator, so only the image's tag counts.
    labelled = (
        labels_of(pod).get(VERSION_LABEL, "") if program_of(pod) in {program.name for program in PROGRAMS} else ""
    )
    return next((parsed for candidate in (labelled, *tags) if (parsed := _read_version(candidate)) is not None), None)


def _read_version(text: str) -> Version | None:
    try:
        return Version(text)
    except InvalidVersion:
        return None


def _mismatch(agent: Version, scheduler: Version) -> str:
    # A scheduler understands older agents; an older scheduler may not understand a newer agent.
    if agent.release[:2] > scheduler.release[:2]:
        return "upgrade the scheduler first"
    return _far(agent, scheduler)


def _far(one: Version, other: Version) -> str:
    same = one.major == other.major
    return "" if same and abs(one.minor - other.minor) <= 1 else "they may be at most one minor release apart"


@check("programs-alone", "no other autoscaler is running", "kubectl scale {subject} --replicas=0", When.ALWAYS)
def alone(facts: CheckFacts) -> CheckResult:
    """The original project's scheduler and agents manage the same pods and VMs, and two VM controllers would run each
    VM twice. Run only one of each (operations-cluster.md, taking over).
    """
    others = [*_original_workloads(facts, "Deployment"), *_original_workloads(facts, "DaemonSet")]
    controllers = [
        name_of(deployment).namespace
        for deployment in facts.deployments.value
        if name_of(deployment).name == "neonvm-controller" and integer(deployment, "spec", "replicas")
    ]
    if len(controllers) > 1:
        message = (
            f"neonvm-controller runs in more than one namespace ({', '.join(sorted(controllers))}): each runs every VM"
        )
        # The one outside the installation's namespace is proposed for removal.
        foreign = next(namespace for namespace in sorted(controllers) if namespace != facts.namespace)
        others.append(CheckProblem(f"-n {foreign} deployment neonvm-controller", message))
    return CheckResult("", others)


def _original_workloads(facts: CheckFacts, kind: str) -> list[CheckProblem]:
    names = {name for workload_kind, name in ORIGINALS if workload_kind == kind}
    what = {"Deployment": "schedules the same pods", "DaemonSet": "resizes the same VMs"}[kind]
    workloads = (facts.daemon_sets if kind == "DaemonSet" else facts.deployments).value
    return [
        CheckProblem(
            f"-n {name_of(workload).namespace} {kind.lower()} {name_of(workload).name}",
            f"{kind} {name_of(workload)} of the original project {what}",
            # A DaemonSet cannot be scaled to zero, so it is deleted instead.
            remedy=""
            if kind == "Deployment"
            else f"kubectl -n {name_of(workload).namespace} delete daemonset {name_of(workload).name}",
        )
        for workload in workloads
        # A Deployment with no replicas does nothing and can stay.
        if name_of(workload).name in names and (kind == "DaemonSet" or integer(workload, "spec", "replicas"))
    ]
