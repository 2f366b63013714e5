"""Resources beside CPU and memory, as kube-scheduler counts them: devices, huge pages, local storage."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

from protocol.wire.wire_quantities import mem_from_wire
from scheduler_plugin.cluster.pods.shapes import Amounts, Container, PodSpec

LEDGERS: Final = frozenset({"cpu", "memory"})
"""Resources that the ledger itself accounts for."""


def other_resources(given: Amounts | None) -> Counter[str]:
    """Amounts of each resource that is not the ledger's, in whole units, rounded up as kube-scheduler does."""
    amounts: Counter[str] = Counter()
    for name, amount in (given or {}).items():
        if name not in LEDGERS:
            # An amount that cannot be read is skipped: kube-scheduler judges the real object anyway.
            with suppress(ValueError):
                amounts[name] = mem_from_wire(name, amount).value
    return amounts


def other_requests(spec: PodSpec) -> tuple[tuple[str, int], ...]:
    """The pod's requests for such resources, by name."""
    inits: Sequence[Container] = spec.initContainers or ()
    # Most pods have none, and the sums below are slow.
    if not (_ask(spec.containers) or _ask(inits)):
        return ()
    running: Counter[str] = Counter()
    for container in spec.containers:
        running += _requests(container)
    sidecars: Counter[str] = Counter()
    starting: Counter[str] = Counter()
    for container in inits:
        needed = sidecars + _requests(container)
        # The maximum of each resource, since init containers run one after the other.
        starting |= needed
        # An init container that always restarts is a sidecar, and keeps running beside all that start after it.
        sidecars = needed if container.restartPolicy == "Always" else sidecars
    # Adding Counters drops zeros: a request for none of a resource constrains nothing.
    return tuple(sorted(((running + sidecars) | starting).items()))


def _ask(containers: Sequence[Container]) -> bool:
    for container in containers:
        requests = None if container.resources is None else container.resources.requests
        if requests and not requests.keys() <= LEDGERS:
            return True
    return False


def _requests(container: Container) -> Counter[str]:
    return other_resources(None if container.resources is None else container.resources.requests)
