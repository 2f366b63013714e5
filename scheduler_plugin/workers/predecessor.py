"""Wait for the end of a scheduler that acts without a Lease, when replicas with one take its place (B.3).

No Lease holds such a scheduler back, so a replica that has won the Lease leads only once that scheduler's pod is gone.
An installation can thus go from one scheduler to two in place, without deleting anything by hand, and two never act.
"""

from __future__ import annotations

import logging
from typing import Final

from protocol.kubernetes.api import ApiCall, ApiError, KubernetesApi
from protocol.kubernetes.objects import JsonObject, is_over, items, name_of
from protocol.kubernetes.resources import PODS
from protocol.runtime.clock import Clock
from protocol.units import Seconds
from scheduler_plugin.texts import logs

LOG: Final = logging.getLogger("autoscale.predecessor")

SELECTOR: Final = "app.kubernetes.io/name=autoscaling-scheduler"
"""The label of every scheduler's pod, in all manifests."""

LEASE: Final = "--lease"
TIMEOUT: Final = Seconds(2.0)
INTERVAL: Final = Seconds(0.5)


def acts_alone(pod: JsonObject) -> bool:
    """Return True if the scheduler in that pod acts, or may yet act, without a Lease.

    >>> acts_alone({"spec": {"containers": [{"args": ["--config=a"]}]}})
    True
    >>> acts_alone({"spec": {"containers": [{"args": ["--lease=a/b"]}, {"args": []}]}})
    False
    """
    containers = items(pod, "spec", "containers")
    lines = (container.get(field) for container in containers for field in ("command", "args"))
    arguments = [str(argument) for line in lines if isinstance(line, list) for argument in line]
    return not is_over(pod) and not any(argument == LEASE or argument.startswith(f"{LEASE}=") for argument in arguments)


async def until_gone(api: KubernetesApi, clock: Clock, namespace: str) -> bool:
    """Return once no scheduler in ``namespace`` acts without a Lease: True if one had to be waited for."""
    previous: object = None
    while True:
        try:
            listed = await api.call(ApiCall("GET", PODS.path(namespace), TIMEOUT, {"labelSelector": SELECTOR}))
            waiting_for: object = [str(name_of(pod)) for pod in items(listed, "items") if acts_alone(pod)]
        except ApiError as error:
            # If the list fails, one may still act.
            waiting_for = str(error)
        if not waiting_for:
            return previous is not None
        # Logged only when it changes: this repeats twice a second.
        if waiting_for != previous:
            LOG.warning(logs.NOT_LEADING, extra={"reason": waiting_for})
        previous = waiting_for
        await clock.sleep(INTERVAL)
