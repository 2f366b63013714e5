"""The programs of the manifest, configured to let pod requests follow their VMs, or not."""

from __future__ import annotations

from typing import Final

from tests.deploy.manifests import Document
from tests.kubernetes.scheduling.programs import Programs

NODE: Final = "node-1"
"""A real one."""


class FollowingPrograms(Programs):
    """Our service and its kube-scheduler; with ``follows`` requests follow, with ``limits`` CPU limits too."""

    follows = True
    limits = False

    def more_settings(self) -> Document:
        """See ``Programs``."""
        return {"permits": {"asPodRequests": self.follows, "asCpuLimits": self.limits}}

    def follow(self, follows: bool, *, limits: bool = False) -> None:
        """True if requests, and limits with them, follow from now on, on the real node none of which is kept back."""
        self.follows, self.limits = follows, limits
        self.set_overrides({"nodes": [NODE], "cpu": {"system": "0"}, "memory": {"system": "0"}})
