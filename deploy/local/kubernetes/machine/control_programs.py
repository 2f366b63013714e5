"""The programs of the control plane, which run in the cluster's own network."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from deploy.local.kubernetes.plan import arguments
from deploy.local.kubernetes.programs.ensure import Programs
from deploy.local.kubernetes.programs.versions import ETCD
from deploy.local.process import LocalProgram
from protocol.units import Seconds

API_SERVER: Final = "kube-apiserver"
STORE: Final = "etcd"
_PATIENCE: Final = Seconds(0.5)
"""Short, because a longer shutdown would only serve their clients and their store, which end with them."""


@dataclass(frozen=True, slots=True)
class ControlPlane:
    """Keys, store and logs of the control plane, and the way into its network."""

    pki: Path
    data: Path
    logs: Path
    enter: Sequence[str]
    programs: Programs

    def store(self) -> LocalProgram:
        """etcd."""
        return self._program(self.programs.folders[ETCD.name], STORE, arguments.etcd(str(self.data)))

    def api_server(self) -> LocalProgram:
        """The API server."""
        return self._program(self.programs.kubernetes, API_SERVER, arguments.api_server(str(self.pki)))

    def followers(self) -> dict[str, LocalProgram]:
        """Programs that start once the API server is ready, by name."""
        pki, folder = str(self.pki), self.programs.kubernetes
        lines = {
            "kube-controller-manager": arguments.controller_manager(pki),
            "kube-scheduler": arguments.scheduler(pki),
        }
        return {name: self._program(folder, name, line) for name, line in lines.items()}

    def _program(self, folder: Path, name: str, line: Sequence[str]) -> LocalProgram:
        return LocalProgram((str(folder / name), *line), self.logs / f"{name}.log", self.enter, patience=_PATIENCE)
