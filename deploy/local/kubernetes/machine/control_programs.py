"""Control plane processes, which run in the cluster's network namespace."""

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
_GRACE_PERIOD: Final = Seconds(0.5)
"""Short: a graceful shutdown has no use, because all clients stop too."""


def control_programs(
    pki: Path, data: Path, logs: Path, enter: Sequence[str], programs: Programs
) -> dict[str, LocalProgram]:
    """The control plane's programs by name."""
    keys, kubernetes = str(pki), programs.kubernetes
    commands = {
        STORE: (programs.folders[ETCD.name], arguments.etcd(str(data))),
        API_SERVER: (kubernetes, arguments.api_server(keys)),
        "kube-controller-manager": (kubernetes, arguments.controller_manager(keys)),
        "kube-scheduler": (kubernetes, arguments.scheduler(keys)),
    }
    return {
        name: LocalProgram((str(folder / name), *line), logs / f"{name}.log", enter, grace_period=_GRACE_PERIOD)
        for name, (folder, line) in commands.items()
    }
