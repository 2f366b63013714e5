"""The guests of a cluster as asked for: real ones, whose image is built if it is missing, or simulated ones."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from deploy.local.cluster.loads import load_of
from deploy.local.cluster.progress import StepFailedError
from deploy.local.cluster.spec import ClusterSpec
from deploy.neonvm.ports import PodSockets
from deploy.neonvm.qemu.qemu_guest import QemuGuests
from deploy.neonvm.simulated.simulated_guest import SimulatedGuests
from protocol.runtime.clock import Clock
from vm_image.build import cached_image, ensure_image
from vm_image.host import BuildError


async def make_guests(
    spec: ClusterSpec, sockets: PodSockets, clock: Clock, say: Callable[[str], None]
) -> QemuGuests | SimulatedGuests:
    """Prepares guests. Raises ``StepFailedError`` and ``GuestError`` with a remedy."""
    if spec.guests == "simulated":
        load = spec.load or ("waves" if spec.vms else "idle")
        return SimulatedGuests(sockets, clock, load_of(load, spec.vms))
    try:
        image = cached_image()
        if image is None:
            # In a thread, because a build takes minutes and must not block the event loop.
            image = await asyncio.to_thread(ensure_image, say)
    except BuildError as error:
        raise StepFailedError(f"the guest image cannot be built: {error}") from error
    return await QemuGuests.prepare(image, sockets, clock)
