"""Resources beside CPU and memory, as kube-scheduler counts them: devices, huge pages, local storage."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

from protocol.wire.wire_quantities import mem_from_wire
from scheduler_plugin.cluster.pods.shapes import Amounts, Container, PodSpec

LEDGERS: Final = frozenset({"cpu", "memory"})
"""Those that the ledger keeps."""


def other_resources(given: Amounts | None) -> Counter[str]:
    """Amounts of each resource that is not the ledger's, in whole units, rounded up as kube-scheduler does."""
    amounts: Counter[str] = Counter()
    for name, amount in (given or {}).items():
        if name not in LEDGERS:
            # kube-scheduler judges the real object and refuses a node that has too little.
            with suppress(ValueError):
                amounts[name] = mem_from_wire(name, amount).value
    return amounts


def other_requests(spec: PodSpec) -> tuple[tuple[str, int], ...]:
    """The pod's requests for them, by name: most pods have none, and cost one look at each container."""
    inits: Sequence[Container] = spec.initContainers or ()
    # The usual case, by one look at each container: the sums below are slow.
    if not (_ask(spec.containers) or _ask(inits)):
        return ()
    running: Counter[str] = Counter()
    for init in spec.containers:
        running += _requests(init)
    sidecars: Counter[str] = Counter()
    starting: Counter[str] = Counter()
    for init in inits:
        needed = sidecars + _requests(init)
        # For Counters this is the maximum of each resource: init containers run one after the other.
        starting |= needed
        # An init container that always restarts is a sidecar: it goes on running beside all that start after it.
        sidecars = needed if init.restartPolicy == "Always" else sidecars
    # Adding Counters drops what is zero: an amount of nothing asks for nothing.
    return tuple(sorted(((running + sidecars) | starting).items()))


def _ask(containers: Sequence[Container]) -> bool:
    for container in containers:
        requests = None if container.resources is None else container.resources.requests
        if requests and not requests.keys() <= LEDGERS:
            return True
    return False


def _requests(container: Container) -> Counter[str]:
    return other_resources(None if container.resources is None else container.resources.requests)
