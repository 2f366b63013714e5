"""Queries metrics through the API server's proxy, and explanations of programs and agents by port-forward."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable, Mapping, Sequence
from typing import Final, TypeVar

from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from deploy.kube.client import ApiClient
from protocol.kubernetes.api import ApiError, ApiRefusedError, ApiUnknownError
from protocol.kubernetes.conditions import is_condition_true
from protocol.kubernetes.objects import Json, labels_of, name_of, node_of, pod_phase, text
from protocol.kubernetes.refusals import RefusalKind
from protocol.names import LABEL_ENABLED, LABEL_VM_NAME
from scripts.autoscale.check.facts import Observation, Observed, Unavailable
from scripts.autoscale.check.gathering.observing import observe, read_json
from scripts.autoscale.check.installed_programs import AGENT, PROGRAMS, SCHEDULER, agent_container, program_of

MOST_AGENTS: Final = 100
"""Maximum number of agents to query; in a larger fleet they are a sample."""

PROXY: Final = "get pods/proxy"
FORWARD: Final = "create pods/portforward"
"""The permission needed for endpoints that programs serve only on loopback."""

_AT_ONCE: Final = 16
_AGENT_PORT: Final = 9101
_METRICS: Final = {program.name: program.metrics for program in PROGRAMS if program.leases}
"""Metrics ports of the programs with several replicas."""

_PREFIX: Final = "autoscale_"

T = TypeVar("T")


async def pages(client: ApiClient, pods: Sequence[Json], notes: list[str]) -> dict[str, Observation[Sequence[Sample]]]:
    """The metrics of each running replica, by pod; adds remarks for the user to ``notes``."""
    running = [pod for pod in pods if program_of(pod) in _METRICS and pod_phase(pod) == "Running"]
    observations = await asyncio.gather(*(_page(client, pod, notes) for pod in running))
    return {name_of(pod).name: observation for pod, observation in zip(running, observations, strict=True)}


async def _page(client: ApiClient, pod: Json, notes: list[str]) -> Observation[Sequence[Sample]]:
    page = await _query_pod(_metrics(client, pod, notes), pod, PROXY)
    if isinstance(page, Unavailable):
        return page
    try:
        return Observed(samples(page.value.decode()))
    except ValueError as error:
        return Unavailable(f"cannot parse the metrics of pod {name_of(pod).name}: {error}", has_failed=True)


async def _metrics(client: ApiClient, pod: Json, notes: list[str]) -> bytes:
    """A metrics page through the API server's proxy; by port-forward if the API server cannot reach pods (EKS)."""
    name, port = name_of(pod), _METRICS[program_of(pod)]
    try:
        return await client.raw_get(f"/api/v1/namespaces/{name.namespace}/pods/{name.name}:{port}/proxy/metrics")
    except ApiUnknownError as error:
        try:
            page = await client.pod_get(name, port, "/metrics")
        except ApiError:
            # The proxy's error names the cause; the fallback's would hide it.
            raise error from None
        notes.append(f"the API server cannot reach pod {name.name}, using port-forward: {error}")
        return page


async def _query_pod(request: Awaitable[T], pod: Json, right: str) -> Observation[T]:
    """Queries a pod; a failure counts only if the pod is ready."""
    observation = await observe(request, right)
    if isinstance(observation, Unavailable) and observation.has_failed:
        # The program's own line reports a pod that is not ready.
        return Unavailable(f"pod {name_of(pod).name}: {observation.why}", has_failed=is_condition_true(pod, "Ready"))
    return observation


def samples(page: str) -> list[Sample]:
    """Parses our own metrics of a page in Prometheus's text format (pure). Raises ``ValueError``.

    >>> [sample[:3] for sample in samples('autoscale_x_seconds{verb="filter"} 2.5')]
    [('autoscale_x_seconds', {'verb': 'filter'}, 2.5)]
    """
    # The parser is slow, so skip the metrics of Python and the process.
    lines = [line for line in page.splitlines() if line.startswith(_PREFIX)]
    families = text_string_to_metric_families("\n".join(lines) + "\n")
    return [sample for family in families for sample in family.samples]


async def ledger(client: ApiClient, pod: Json | None) -> Observation[Json]:
    """The ledger of the scheduler in ``pod``, by node."""
    if pod is None:
        return Unavailable("no scheduler is running")
    return await _query_pod(_json(client, pod, _METRICS[SCHEDULER], "/nodes"), pod, FORWARD)


async def explanations(
    client: ApiClient, vms: Iterable[Json], vm_pods: Iterable[Json], pods: Iterable[Json]
) -> Observation[Mapping[str, Json | None]]:
    """The explanation of each VM's agent; None if it does not respond. VMs without an agent are omitted."""
    runners = {name_of(pod): pod for pod in vm_pods if agent_container(pod) is not None}
    on_nodes = {node_of(pod): pod for pod in pods if program_of(pod) == AGENT and pod_phase(pod) == "Running"}
    targets = dict[str, tuple[Json, str]]()
    for vm in vms:
        if labels_of(vm).get(LABEL_ENABLED) != "true" or text(vm, "status", "phase") != "Running":
            continue
        name = name_of(vm)
        # The label contains the VM's name without its namespace, and during a migration a VM has two runner pods.
        same_name = [pod for pod in runners.values() if labels_of(pod).get(LABEL_VM_NAME) == name.name]
        sidecars = [pod for pod in same_name if name_of(pod).namespace == name.namespace]
        current = [pod for pod in sidecars if name_of(pod).name == text(vm, "status", "podName")] or sidecars
        # Prefer a sidecar; without one, the agent of the node explains the VM.
        if current:
            targets[str(name)] = current[0], "/explain"
        elif (node := on_nodes.get(text(vm, "status", "node"))) is not None:
            targets[str(name)] = node, f"/explain/{name}"
    # Sorted, so that repeated checks query the same agents.
    chosen = dict(sorted(targets.items())[:MOST_AGENTS])
    limit = asyncio.Semaphore(_AT_ONCE)

    async def every() -> Mapping[str, Json | None]:
        observations = await asyncio.gather(*(_explanation(client, pod, path, limit) for pod, path in chosen.values()))
        return dict(zip(chosen, observations, strict=True))

    return await observe(every(), FORWARD)


async def _explanation(client: ApiClient, pod: Json, path: str, limit: asyncio.Semaphore) -> Json | None:
    async with limit:
        try:
            return await _json(client, pod, _AGENT_PORT, path)
        except ApiUnknownError:
            return None
        except ApiRefusedError as error:
            # A missing permission affects all agents; other refusals only this one.
            if error.kind is RefusalKind.FORBIDDEN:
                raise
            return None


async def _json(client: ApiClient, pod: Json, port: int, path: str) -> Json:
    return read_json(await client.pod_get(name_of(pod), port, path), path)
