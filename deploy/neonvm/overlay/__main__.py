"""``neonvm-network``: keeps this node's part of the flat network of VMs. Run with ``--help``."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import httpx

from deploy.kube.client import ApiClient, BearerAuth
from deploy.kube.informer import Informer
from deploy.neonvm.objects.pod_form import FLAT_FOLDER
from deploy.neonvm.overlay.node_network import NodeNetwork, NodeNetworkDependencies, place_of
from deploy.neonvm.overlay.telemetry import Telemetry
from protocol.kubernetes.resources import NODES
from protocol.runtime.clock import SystemClock
from protocol.runtime.keep_alive import probed_transport
from scheduler_plugin.program import credentials, prepare, run, stop_on_signals
from scheduler_plugin.program_options import add_kubeconfig, add_log_level
from scheduler_plugin.web.limits import Limits
from scheduler_plugin.web.probes import probes_app
from scheduler_plugin.web.serving import Listener, serve

DESCRIPTION: Final = "One node's part of the flat network of VMs."
CONNECTIONS: Final = httpx.Limits(max_connections=16, max_keepalive_connections=8)
LIMITS: Final = Limits(connections=64, per_peer=16)
_TIMEOUT: Final = httpx.Timeout(15.0, connect=5.0)


def parser() -> argparse.ArgumentParser:
    """All flags, with their defaults."""
    found = argparse.ArgumentParser(prog="neonvm-network", description=DESCRIPTION)
    found.add_argument("--node", default=os.environ.get("NODE_NAME", ""), help="this node (default: $NODE_NAME)")
    found.add_argument("--address", default=os.environ.get("NODE_IP", ""), help="its address (default: $NODE_IP)")
    found.add_argument("--folder", type=Path, default=Path(FLAT_FOLDER), help="of its pods (default: %(default)s)")
    where = "where /metrics /healthz /readyz are (default: %(default)s)"
    found.add_argument("--listen", default="127.0.0.1:10292", help=where)
    add_kubeconfig(found)
    add_log_level(found)
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs until SIGTERM or SIGINT; 0 then, 2 where it cannot start."""
    options = parser().parse_args(arguments)
    prepare(options.log_level)
    return run("neonvm-network", _run(options))


async def _run(options: argparse.Namespace) -> None:
    clock, stop = SystemClock(), stop_on_signals()
    found = credentials(options.kubeconfig, clock)
    http = httpx.AsyncClient(
        base_url=found.server,
        auth=BearerAuth(found),
        transport=probed_transport(found.tls, CONNECTIONS),
        timeout=_TIMEOUT,
        trust_env=False,
    )
    async with ApiClient(http) as client:
        nodes = Informer(client, NODES, clock)
        place = await place_of(options.node, options.address)
        network = NodeNetwork(place, NodeNetworkDependencies(client, nodes, clock, options.folder))
        async with asyncio.TaskGroup() as tasks:
            telemetry = Telemetry(lambda: network.is_up)
            background = [tasks.create_task(nodes.run()), tasks.create_task(network.run())]
            probes = probes_app("neonvm-network", DESCRIPTION, lambda: _ready(network), telemetry.page)
            await serve([Listener("probes", probes, options.listen, limits=LIMITS)], stop)
            for task in background:
                task.cancel()


def _ready(network: NodeNetwork) -> tuple[bool, str]:
    return (True, "ok") if network.is_up else (False, "the node's part of the network is not made yet")


if __name__ == "__main__":
    sys.exit(main())
