"""The programs of the manifest, told whether requests of pods follow their VMs."""

from __future__ import annotations

from typing import Final

from tests.deploy.manifests import Document
from tests.kubernetes.scheduling.programs import Programs

NODE: Final = "node-1"
"""A real one."""


class FollowingPrograms(Programs):
    """Our service and its kube-scheduler; with ``follows`` requests follow."""

    follows = True

    def more_settings(self) -> Document:
        """See ``Programs``."""
        return {"permits": {"asPodRequests": self.follows}}

    def follow(self, follows: bool) -> None:
        """Whether requests follow from now on, on the real node none of which is kept back."""
        self.follows = follows
        self.set_overrides({"nodes": [NODE], "cpu": {"system": "0"}, "memory": {"system": "0"}})
