"""``neonvm-network``: maintains the VMs' flat network on this node. See ``--help``."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Final

import httpx2 as httpx

from deploy.kube.client import ApiClient
from deploy.kube.informer import Informer
from deploy.neonvm.devices.plugin import Plugin
from deploy.neonvm.devices.registration import Registration
from deploy.neonvm.objects.pod_form import FLAT_FOLDER, FLAT_RESOURCE
from deploy.neonvm.overlay.endpoints import trimmed
from deploy.neonvm.overlay.node_network import WATCHED, NodeNetwork, NodeNetworkDependencies, this_node
from deploy.neonvm.overlay.taps import COUNT, TapSockets, grant_sockets, pod_with_device
from deploy.neonvm.overlay.telemetry import OverlayTelemetry
from deploy.neonvm.texts import devices
from deploy.neonvm.texts import network as network_texts
from protocol.runtime.background_jobs import background_jobs
from protocol.runtime.clock import SystemClock
from protocol.runtime.kubernetes.http_api import HttpApi, http_client
from protocol.runtime.program import add_kubeconfig, add_log_level, credentials, prepare, run, stop_on_signals
from protocol.runtime.serving.limits import Limits
from protocol.runtime.serving.listeners import Listener, serve
from protocol.runtime.serving.probes import probes_app

NAME: Final = "neonvm-network"
DESCRIPTION: Final = "Maintains the VMs' flat network on one node."
CONNECTIONS: Final = httpx.Limits(max_connections=16, max_keepalive_connections=8)
LIMITS: Final = Limits(connections=64, per_peer=16)


def parser() -> argparse.ArgumentParser:
    """The command line's parser."""
    flags = argparse.ArgumentParser(prog=NAME, description=DESCRIPTION)
    flags.add_argument("--node", default=os.environ.get("NODE_NAME", ""), help="this node (default: $NODE_NAME)")
    flags.add_argument("--address", default=os.environ.get("NODE_IP", ""), help="the node's IP (default: $NODE_IP)")
    for flag, folder, what in (
        ("--folder", FLAT_FOLDER, "folder of the sockets at which pods get their taps"),
        ("--device-plugins", "/var/lib/kubelet/device-plugins", "the kubelet's device plugin folder"),
        ("--pod-resources", "/var/lib/kubelet/pod-resources", "folder of the kubelet's PodResources socket"),
    ):
        flags.add_argument(
            flag, type=Path, default=Path(folder), metavar="FOLDER", help=f"{what} (default: %(default)s)"
        )
    isolation = "VMs reach only VMs of their own namespace, or all (default: %(default)s)"
    flags.add_argument("--isolation", choices=("namespace", "none"), default="namespace", help=isolation)
    underlay = "an interface on which other nodes' packets arrive with asymmetric routing (repeatable)"
    flags.add_argument("--underlay", action="append", default=[], metavar="INTERFACE", help=underlay)
    listen = "address of /metrics, /healthz and /readyz (default: %(default)s)"
    flags.add_argument("--listen", default="127.0.0.1:10292", help=listen)
    add_kubeconfig(flags)
    add_log_level(flags)
    return flags


def main(arguments: Sequence[str] | None = None) -> int:
    """Run until SIGTERM or SIGINT; return 0, or 2 if it cannot start."""
    options = parser().parse_args(arguments)
    prepare(options.log_level)
    return run(NAME, _run(options))


async def _run(options: argparse.Namespace) -> None:
    clock, stop = SystemClock(), stop_on_signals()
    login = credentials(options.kubeconfig, clock)
    async with ApiClient(HttpApi(http_client(login, CONNECTIONS, NAME), login.token)) as client:
        # Trimmed: each node caches the objects of the whole cluster.
        caches = {kind: Informer(client, kind, clock, trimmed) for kind in WATCHED}
        node = await this_node(options.node, options.address)
        # `network` is assigned below, before the first scrape.
        telemetry = OverlayTelemetry(lambda: network.is_up)
        holder, isolated = partial(pod_with_device, options.pod_resources), options.isolation == "namespace"
        deps = NodeNetworkDependencies(client, caches, clock, holder, isolated, options.underlay, telemetry.dropped)
        network = NodeNetwork(node, deps)
        sockets = TapSockets(options.folder, network.serve)
        plugin = Plugin(COUNT, partial(grant_sockets, sockets))
        registration = Registration(FLAT_RESOURCE, options.device_plugins, plugin, clock, telemetry.registered)
        informers = (informer.run() for informer in caches.values())
        probes = probes_app(NAME, DESCRIPTION, lambda: _ready(network, registration), telemetry.page)
        async with background_jobs(*informers, network.run(), _offer(network, sockets, registration)):
            await serve([Listener("probes", probes, options.listen, limits=LIMITS)], stop)


async def _offer(network: NodeNetwork, sockets: TapSockets, registration: Registration) -> None:
    """Offer the device plugin's resource once the network is up."""
    await network.up.wait()
    try:
        sockets.restore()
        await registration.run()
    finally:
        sockets.close()


def _ready(network: NodeNetwork, registration: Registration) -> tuple[bool, str]:
    if not network.is_up:
        return False, network_texts.NOT_UP.format(reason=network.reason)
    return (True, "ok") if registration.is_registered else (False, devices.NOT_CONNECTED)


if __name__ == "__main__":
    sys.exit(main())
