"""Programs of an installation, and how to find them in a cluster (pure)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from prometheus_client.samples import Sample

from protocol.kubernetes.conditions import condition_of
from protocol.kubernetes.objects import Json, has_finished, is_terminating, items, labels_of, name_of, pod_phase, text
from scripts.autoscale.check.facts import CheckFacts, Observed, Unavailable

NAME_LABEL: Final = "app.kubernetes.io/name"
VERSION_LABEL: Final = "app.kubernetes.io/version"
SCHEDULER: Final = "autoscaling-scheduler"
AGENT: Final = "autoscaling-agent"
INJECTOR: Final = "autoscaling-injector"
GROUPS: Final = "autoscaling-groups"
DEVICES: Final = "neonvm-devices"
NETWORK: Final = "neonvm-network"
KUBE_SCHEDULER: Final = "kube-scheduler"
LEADING: Final = "_leading"
"""Suffix of the metric that is 1 in the leader."""

AGENT_CONTAINERS: Final = ("agent", "autoscaler-agent")


@dataclass(frozen=True, slots=True)
class Program:
    """One of our Deployments or DaemonSets.

    ``leases`` are the Leases of its replicas, its own first; ``metrics`` is its metrics port, ``tls`` its TLS ports.
    """

    name: str
    is_daemon: bool = False
    leases: tuple[str, ...] = ()
    metrics: int = 0
    tls: tuple[int, ...] = ()


PROGRAMS: Final = (
    Program(
        SCHEDULER, leases=("autoscaling-scheduler", "autoscaling-kube-scheduler"), metrics=10297, tls=(10299, 10298)
    ),
    Program(AGENT, is_daemon=True, metrics=9101),
    Program(GROUPS, leases=("autoscale-groups",), metrics=10294),
    Program("autoscaling-dashboard", metrics=10289),
    Program(INJECTOR, leases=("autoscaling-injector",), metrics=10292, tls=(10293,)),
    Program("autoscaling-expander", metrics=10295, tls=(10296,)),
    Program("neonvm-controller", leases=("neonvm-controller",), metrics=10293),
    Program(DEVICES, is_daemon=True, metrics=10291),
    Program(NETWORK, is_daemon=True),
)

# A digest may follow the tag. A registry's port is followed by a slash.
_TAG: Final = re.compile(r":([A-Za-z0-9_][A-Za-z0-9_.-]*)(?:@.*)?$")


def installed(facts: CheckFacts) -> dict[str, Json]:
    """The Deployment or DaemonSet of each installed program. Raises ``UnavailableError``."""
    kinds = {True: facts.daemon_sets.value, False: facts.deployments.value}
    here = {
        is_daemon: by_name(workload for workload in workloads if name_of(workload).namespace == facts.namespace)
        for is_daemon, workloads in kinds.items()
    }
    workloads = {program.name: here[program.is_daemon].get(program.name) for program in PROGRAMS}
    return {name: workload for name, workload in workloads.items() if workload is not None}


def by_name(objects: Iterable[Json]) -> dict[str, Json]:
    """Maps names to cluster-scoped objects, or to the objects of one namespace."""
    return {name_of(named).name: named for named in objects}


def program_of(pod: Json) -> str:
    """The program that a pod runs, by its label."""
    return labels_of(pod).get(NAME_LABEL, "")


def pods_of(facts: CheckFacts, program: str) -> list[Json]:
    """The pods of a program that have not ended and are not being deleted. Raises ``UnavailableError``."""
    pods = [pod for pod in facts.pods.value if program_of(pod) == program]
    return [pod for pod in pods if not is_terminating(pod) and not has_finished(pod)]


def is_leader(facts: CheckFacts, pod: str) -> bool:
    """Return True if the pod's metrics say that it leads."""
    return any(sample.name.endswith(LEADING) and sample.value == 1.0 for sample in samples_of(facts, pod))


def samples_of(facts: CheckFacts, pod: str) -> Sequence[Sample]:
    """The metrics of a pod; none if they could not be read."""
    observation = facts.metrics.get(pod)
    return observation.value if isinstance(observation, Observed) else ()


def leading_pod(facts: CheckFacts, program: str) -> Json | None:
    """The running leader of a program, or else its first running pod; None if there is none."""
    if isinstance(facts.pods, Unavailable):
        return None
    running = [pod for pod in pods_of(facts, program) if pod_phase(pod) == "Running"]
    return next((pod for pod in running if is_leader(facts, name_of(pod).name)), running[0] if running else None)


def why_unscheduled(pod: Json) -> str:
    """Reason why a scheduler has found no node for the pod; empty if it has, or has not tried."""
    scheduled = condition_of(pod, "PodScheduled")
    is_refused = text(scheduled, "status") == "False"
    return text(scheduled, "message") or text(scheduled, "reason") if is_refused else ""


def containers(pod: Json) -> Iterator[Json]:
    """All containers of a pod's spec, including native sidecars."""
    # Native sidecars are init containers with `restartPolicy: Always`.
    yield from items(pod, "spec", "initContainers")
    yield from items(pod, "spec", "containers")


def has_argument(pod: Json, argument: str) -> bool:
    """Return True if a container of a pod, or of a workload's template, has the argument ``--name``."""
    return bool(argument_values(pod, argument))


def argument_values(pod: Json, argument: str) -> list[str]:
    """The values of the argument ``--name`` of containers of a pod, or of a workload's template.

    >>> argument_values({"spec": {"containers": [{"args": ["--lease=a/b"]}]}}, "--lease")
    ['a/b']
    """
    words = (container.get(key) for container in containers(pod) for key in ("command", "args"))
    tokens = (word for arguments in words if isinstance(arguments, list) for word in arguments if isinstance(word, str))
    pairs = (word.partition("=") for word in tokens)
    return [value for name, _, value in pairs if name == argument]


def sidecar_pods(facts: CheckFacts) -> list[Json]:
    """Pods of VMs that contain an agent and have not ended. Raises ``UnavailableError``."""
    return [pod for pod in facts.vm_pods.value if agent_container(pod) is not None and not has_finished(pod)]


def agent_container(pod: Json) -> Json | None:
    """The agent's container in a pod, if any."""
    return next((container for container in containers(pod) if text(container, "name") in AGENT_CONTAINERS), None)


def image_tag(image: str) -> str:
    """The tag of an image; empty if it has none.

    >>> image_tag("localhost:5001/autoscale-scheduler:v0.2.0"), image_tag("localhost:5001/x"), image_tag("a:b@sha256:c")
    ('v0.2.0', '', 'b')
    """
    match = _TAG.search(image)
    return match[1] if match and "/" not in match[1] else ""
