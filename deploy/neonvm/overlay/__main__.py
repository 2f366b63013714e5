"""``neonvm-network``: keeps this node's part of the flat network of VMs. Run with ``--help``."""

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
from deploy.neonvm.devices.registration import DeviceOffer, Registration
from deploy.neonvm.objects.pod_form import FLAT_FOLDER, FLAT_RESOURCE
from deploy.neonvm.overlay.endpoints import part_of
from deploy.neonvm.overlay.node_network import WATCHED, NodeNetwork, NodeNetworkDependencies, place_of
from deploy.neonvm.overlay.taps import COUNT, PlaceHolders, TapSockets, grants
from deploy.neonvm.overlay.telemetry import OverlayTelemetry
from deploy.neonvm.texts import devices
from deploy.neonvm.texts import network as network_texts
from protocol.runtime.beside import beside
from protocol.runtime.clock import SystemClock
from protocol.runtime.kubernetes.http_api import HttpApi, http_client
from protocol.runtime.program import add_kubeconfig, add_log_level, credentials, prepare, run, stop_on_signals
from protocol.runtime.serving.limits import Limits
from protocol.runtime.serving.listeners import Listener, serve
from protocol.runtime.serving.probes import probes_app

NAME: Final = "neonvm-network"
DESCRIPTION: Final = "One node's part of the flat network of VMs."
CONNECTIONS: Final = httpx.Limits(max_connections=16, max_keepalive_connections=8)
LIMITS: Final = Limits(connections=64, per_peer=16)


def parser() -> argparse.ArgumentParser:
    """All flags, with their defaults."""
    flags = argparse.ArgumentParser(prog=NAME, description=DESCRIPTION)
    flags.add_argument("--node", default=os.environ.get("NODE_NAME", ""), help="this node (default: $NODE_NAME)")
    flags.add_argument("--address", default=os.environ.get("NODE_IP", ""), help="its address (default: $NODE_IP)")
    for flag, folder, what in (
        ("--folder", FLAT_FOLDER, "where pods are handed their taps"),
        ("--device-plugins", "/var/lib/kubelet/device-plugins", "the kubelet's folder of device plugins"),
        ("--pod-resources", "/var/lib/kubelet/pod-resources", "the kubelet's folder with its PodResources socket"),
    ):
        flags.add_argument(
            flag, type=Path, default=Path(folder), metavar="FOLDER", help=f"{what} (default: %(default)s)"
        )
    isolation = "whether VMs reach only those of their own namespace, or all (default: %(default)s)"
    flags.add_argument("--isolation", choices=("namespace", "none"), default="namespace", help=isolation)
    underlay = "an interface by which other nodes' packets come although the way back to them is another (repeatable)"
    flags.add_argument("--underlay", action="append", default=[], metavar="INTERFACE", help=underlay)
    where = "where /metrics /healthz /readyz are (default: %(default)s)"
    flags.add_argument("--listen", default="127.0.0.1:10292", help=where)
    add_kubeconfig(flags)
    add_log_level(flags)
    return flags


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs until SIGTERM or SIGINT; 0 then, 2 if it cannot start."""
    options = parser().parse_args(arguments)
    prepare(options.log_level)
    return run(NAME, _run(options))


async def _run(options: argparse.Namespace) -> None:
    clock, stop = SystemClock(), stop_on_signals()
    login = credentials(options.kubeconfig, clock)
    async with ApiClient(HttpApi(http_client(login, CONNECTIONS, NAME), login.token)) as client:
        # `part_of` drops most of each object: every node holds the whole cluster's.
        caches = {kind: Informer(client, kind, clock, part_of) for kind in WATCHED}
        place = await place_of(options.node, options.address)
        # The lambda reads `network` only when metrics are scraped, after it is assigned below.
        telemetry = OverlayTelemetry(lambda: network.is_up)
        holders, isolated = PlaceHolders(options.pod_resources), options.isolation == "namespace"
        deps = NodeNetworkDependencies(client, caches, clock, holders, isolated, options.underlay, telemetry.dropped)
        network = NodeNetwork(place, deps)
        sockets = TapSockets(options.folder, network.serve)
        plugin = Plugin(COUNT, partial(grants, sockets))
        offer = DeviceOffer(FLAT_RESOURCE, options.device_plugins)
        registration = Registration(offer, plugin, clock, telemetry.registered)
        informers = (informer.run() for informer in caches.values())
        probes = probes_app(NAME, DESCRIPTION, lambda: _ready(network, registration), telemetry.page)
        async with beside(*informers, network.run(), _offer(network, sockets, registration)):
            await serve([Listener("probes", probes, options.listen, limits=LIMITS)], stop)


async def _offer(network: NodeNetwork, sockets: TapSockets, registration: Registration) -> None:
    """Offers places to pods once there is a network to plug them into."""
    # A pod that got a place before the bridge and the fence exist would only wait for its tap.
    await network.up.wait()
    try:
        sockets.restore()
        await registration.run()
    finally:
        sockets.close()


def _ready(network: NodeNetwork, registration: Registration) -> tuple[bool, str]:
    if not network.is_up:
        return False, network_texts.NOT_UP.format(reason=network.reason)
    return (True, "ok") if registration.is_registered else (False, devices.NOT_FOLLOWED)


if __name__ == "__main__":
    sys.exit(main())
