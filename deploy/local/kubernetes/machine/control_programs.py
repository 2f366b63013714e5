"""The programs of the control plane, which run in the cluster's own network."""

from __future__ import annotations

from collections.abc import Sequence
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


def control_programs(
    pki: Path, data: Path, logs: Path, enter: Sequence[str], programs: Programs
) -> dict[str, LocalProgram]:
    """The programs by name: the store, the API server, and those that start once it is ready."""
    keys, kubernetes = str(pki), programs.kubernetes
    lines = {
        STORE: (programs.folders[ETCD.name], arguments.etcd(str(data))),
        API_SERVER: (kubernetes, arguments.api_server(keys)),
        "kube-controller-manager": (kubernetes, arguments.controller_manager(keys)),
        "kube-scheduler": (kubernetes, arguments.scheduler(keys)),
    }
    return {
        name: LocalProgram((str(folder / name), *line), logs / f"{name}.log", enter, patience=_PATIENCE)
        for name, (folder, line) in lines.items()
    }
