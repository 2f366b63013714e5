"""``neonvm-devices``: device plugin for VM guests. See ``--help``."""

from __future__ import annotations

import argparse
import asyncio
import functools
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from deploy.neonvm.devices.plugin import Plugin, grant_all_devices, present_devices
from deploy.neonvm.devices.registration import Registration
from deploy.neonvm.devices.telemetry import DeviceTelemetry
from deploy.neonvm.texts import devices as texts
from protocol.runtime.clock import SystemClock
from protocol.runtime.program import add_log_level, prepare, run, stop_on_signals
from protocol.runtime.serving.limits import Limits
from protocol.runtime.serving.listeners import Listener, serve
from protocol.runtime.serving.probes import probes_app

DESCRIPTION: Final = (
    "Device plugin. Pods that request the resource get /dev/kvm and /dev/vhost-net if the node has them; otherwise "
    "guests are emulated."
)
LIMITS: Final = Limits(connections=64, per_peer=16)


def parser() -> argparse.ArgumentParser:
    """The command line's parser."""
    flags = argparse.ArgumentParser(prog="neonvm-devices", description=DESCRIPTION)
    for flag, default, metavar, what in (
        ("--resource", "autoscaling.neon.tech/guest-devices", "NAME", "the extended resource"),
        ("--folder", "/var/lib/kubelet/device-plugins", "FOLDER", "the kubelet's device plugin folder"),
        ("--listen", "0.0.0.0:10291", "HOST:PORT", "address of /metrics, /healthz and /readyz"),
    ):
        flags.add_argument(flag, default=default, metavar=metavar, help=f"{what} (default: %(default)s)")
    devices = "devices in /dev that pods get if their drivers are loaded (default: %(default)s)"
    flags.add_argument("--devices", nargs="*", default=["kvm", "vhost-net"], metavar="NAME", help=devices)
    count = "units of the resource on a node; use more than the node can have pods (default: %(default)s)"
    flags.add_argument("--count", type=int, default=1000, metavar="NUMBER", help=count)
    add_log_level(flags)
    return flags


def main(arguments: Sequence[str] | None = None) -> int:
    """Run until SIGTERM or SIGINT; return 0, or 2 if it cannot start."""
    options = parser().parse_args(arguments)
    prepare(options.log_level)
    return run("neonvm-devices", _run(options))


async def _run(options: argparse.Namespace) -> None:
    stop = stop_on_signals()
    # Called for each allocation, because modules may be loaded later.
    devices = functools.partial(present_devices, options.devices)
    # `registration` is assigned below, before the first scrape.
    telemetry = DeviceTelemetry(options.devices, devices, lambda: registration.is_registered)
    plugin = Plugin(options.count, functools.partial(grant_all_devices, devices, telemetry))
    folder = Path(options.folder)
    registration = Registration(options.resource, folder, plugin, SystemClock(), telemetry.registered)
    probes = probes_app("neonvm-devices", DESCRIPTION, lambda: _ready(registration), telemetry.page)
    async with asyncio.TaskGroup() as tasks:
        background = tasks.create_task(registration.run())
        await serve([Listener("metrics", probes, options.listen, limits=LIMITS)], stop)
        background.cancel()


def _ready(registration: Registration) -> tuple[bool, str]:
    return (True, "ok") if registration.is_registered else (False, texts.NOT_CONNECTED)


if __name__ == "__main__":
    sys.exit(main())
