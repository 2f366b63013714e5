"""Sources of the page beside the API, by the ways that read-only commands have into a cluster."""

from __future__ import annotations

from protocol.kubernetes.api import ApiError
from protocol.kubernetes.objects import Json, JsonObject, name_of
from protocol.kubernetes.resources import PODS
from scripts.autoscale.site import NAME_LABEL, Site, SitePods, explanation


class SiteSources:
    """See ``Sources``."""

    def __init__(self, site: Site) -> None:
        self._site = site

    async def of_scheduler(self, path: str) -> Json | None:
        """See ``Sources``."""
        return await self._site.of_scheduler(path)

    async def of_groups(self, path: str) -> Json | None:
        """See ``Sources``."""
        return await self._site.of_groups(path)

    async def of_vm(self, vm: JsonObject) -> Json | None:
        """See ``Sources``."""
        try:
            # Agents beside VMs are in the VM's namespace, those of nodes in the installation's.
            own = await self._site.client.list(PODS, name_of(vm).namespace)
            agents = await self._site.client.list(PODS, label_selector=f"{NAME_LABEL}=autoscaling-agent")
        except ApiError:
            return None
        return await explanation(self._site, dict(vm), SitePods.of((*own.objects, *agents.objects)))
