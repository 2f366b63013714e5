"""Running pods are brought to the sizes of their group in place, through ``pods/resize`` (S1.1).

Rules that hold here:

- Every pod of the target is brought to the same sizes, as often as one differs: a pod that is made anew has the
  template's and is resized again.
- A wish that the kubelet cannot fulfil now, or at all, is withdrawn, for it would hold up others on its node; it is
  tried again after ``PATIENCE``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from protocol.kubernetes.objects import JsonObject, is_leaving, name_of, uid_of
from protocol.kubernetes.resources import PODS
from protocol.units import Instant, Seconds
from scheduler_plugin.cluster.api import ApiCall
from scheduler_plugin.groups.controllers.writer import TIMEOUT, Writer
from scheduler_plugin.groups.core.workload import Container
from scheduler_plugin.groups.objects.pod_sizes import is_pending, resize_pod
from scheduler_plugin.groups.objects.targets import selector_of

MOST: Final = 500
"""Pods of one group that are looked at at a time."""

PATIENCE: Final = Seconds(300.0)


@dataclass(slots=True)
class PodResizer:
    """Resizes the pods of one target at a time. Raises as ``Writer``."""

    writer: Writer
    _withdrawn: dict[str, Instant] = field(default_factory=dict)

    async def bring(self, target: JsonObject, sizes: tuple[Container, ...]) -> None:
        """Asks every pod of ``target`` that differs for ``sizes``."""
        selector = selector_of(target)
        if not sizes or not selector:
            return
        query = {"labelSelector": selector, "limit": str(MOST)}
        page = await self.writer.api.page(ApiCall("GET", PODS.path(name_of(target).namespace), TIMEOUT, query=query))
        now = self.writer.clock.now()
        self._withdrawn = {uid: until for uid, until in self._withdrawn.items() if until > now}
        for pod in page.objects:
            if is_leaving(pod) or (uid_of(pod) in self._withdrawn and not is_pending(pod)):
                continue
            write = resize_pod(pod, sizes)
            if write is None:
                continue
            if is_pending(pod):
                self._withdrawn[uid_of(pod)] = Instant(now + PATIENCE)
            await self.writer.do(write)
