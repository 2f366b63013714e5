"""Resources beside CPU and memory, as kube-scheduler counts them: devices, huge pages, local storage.

Rules that hold here:

- They are judged for targets of moves only; kube-scheduler itself refuses a pod a node that has too little.
- An amount that cannot be read is left out. One of nothing asks for nothing.
"""

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
    found: Counter[str] = Counter()
    for name, amount in (given or {}).items():
        if name not in LEDGERS:
            with suppress(ValueError):
                found[name] = mem_from_wire(name, amount).value
    return found


def other_requests(spec: PodSpec) -> tuple[tuple[str, int], ...]:
    """The pod's requests for them, by name: most pods have none, and cost one look at each container."""
    inits: Sequence[Container] = spec.initContainers or ()
    if not (_ask(spec.containers) or _ask(inits)):
        return ()
    running: Counter[str] = Counter()
    for each in spec.containers:
        running += _requests(each)
    sidecars: Counter[str] = Counter()
    starting: Counter[str] = Counter()
    for each in inits:
        needed = sidecars + _requests(each)
        starting |= needed
        sidecars = needed if each.restartPolicy == "Always" else sidecars
    return tuple(sorted(((running + sidecars) | starting).items()))


def _ask(containers: Sequence[Container]) -> bool:
    for each in containers:
        requests = None if each.resources is None else each.resources.requests
        if requests and not requests.keys() <= LEDGERS:
            return True
    return False


def _requests(container: Container) -> Counter[str]:
    return other_resources(None if container.resources is None else container.resources.requests)
