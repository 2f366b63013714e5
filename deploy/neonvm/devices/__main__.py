"""``neonvm-devices``: a device plugin for the guests of VMs. Run with ``--help``."""

from __future__ import annotations

import argparse
import asyncio
import functools
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from deploy.neonvm.devices.plugin import Plugin, all_devices, present
from deploy.neonvm.devices.registration import DeviceOffer, Registration
from deploy.neonvm.devices.telemetry import DeviceTelemetry
from deploy.neonvm.texts import devices as texts
from protocol.runtime.clock import SystemClock
from protocol.runtime.program import add_log_level, prepare, run, stop_on_signals
from protocol.runtime.serving.limits import Limits
from protocol.runtime.serving.listeners import Listener, serve
from protocol.runtime.serving.probes import probes_app

DESCRIPTION: Final = (
    "Offers one resource on every node. A pod that takes one gets whichever devices of its node make guests fast; on a "
    "node that has none it gets none, and its guest is emulated."
)
LIMITS: Final = Limits(connections=64, per_peer=16)


def parser() -> argparse.ArgumentParser:
    """All flags, with their defaults."""
    flags = argparse.ArgumentParser(prog="neonvm-devices", description=DESCRIPTION)
    for flag, default, metavar, what in (
        ("--resource", "autoscaling.neon.tech/guest-devices", "NAME", "the resource that is offered"),
        ("--folder", "/var/lib/kubelet/device-plugins", "FOLDER", "where the kubelet and its plugins have sockets"),
        ("--listen", "0.0.0.0:10291", "HOST:PORT", "where /metrics /healthz /readyz are"),
    ):
        flags.add_argument(flag, default=default, metavar=metavar, help=f"{what} (default: %(default)s)")
    devices = "devices in /dev that pods get where their drivers are loaded (default: %(default)s)"
    flags.add_argument("--devices", nargs="*", default=["kvm", "vhost-net"], metavar="NAME", help=devices)
    count = "how many pods of a node may take one: more than there can be pods (default: %(default)s)"
    flags.add_argument("--count", type=int, default=1000, metavar="NUMBER", help=count)
    add_log_level(flags)
    return flags


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs until SIGTERM or SIGINT; 0 then, 2 if it cannot start."""
    options = parser().parse_args(arguments)
    prepare(options.log_level)
    return run("neonvm-devices", _run(options))


async def _run(options: argparse.Namespace) -> None:
    stop = stop_on_signals()
    # Called with each allocation: a module that is loaded later counts from then on.
    devices = functools.partial(present, options.devices)
    # The lambda reads `registration` only when metrics are scraped, after it is assigned below.
    telemetry = DeviceTelemetry(options.devices, devices, lambda: registration.is_registered)
    plugin = Plugin(options.count, functools.partial(all_devices, devices, telemetry))
    offer = DeviceOffer(options.resource, Path(options.folder))
    registration = Registration(offer, plugin, SystemClock(), telemetry.registered)
    probes = probes_app("neonvm-devices", DESCRIPTION, lambda: _ready(registration), telemetry.page)
    async with asyncio.TaskGroup() as tasks:
        background = tasks.create_task(registration.run())
        await serve([Listener("metrics", probes, options.listen, limits=LIMITS)], stop)
        # Cancelling removes the socket, so the node stops offering the resource.
        background.cancel()


def _ready(registration: Registration) -> tuple[bool, str]:
    return (True, "ok") if registration.is_registered else (False, texts.NOT_FOLLOWED)


if __name__ == "__main__":
    sys.exit(main())
