"""Light guests behind the guest port: hundreds in one process, playing a load instead of running a database (B.2).

Everything outside of the guest is unchanged: the agent scrapes the same addresses, the runtime resizes by the same
calls. The model is exact for any moment, so nothing ticks: a guest computes itself when somebody looks.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from deploy.local.clock import Clock
from deploy.local.guests.qemu_command import DAEMON_PORT, METRICS_PORT
from deploy.local.guests.simulated_load import Demand, Load
from deploy.local.guests.simulated_model import LightKernel
from deploy.local.guests.simulated_server import Face
from deploy.local.network.serving import Serving
from deploy.local.ports import Guest, GuestError, GuestPhase, GuestSpec, GuestState, NetworkError, PodSockets
from protocol.messages import ObjectName
from protocol.units import Bytes, Instant, MilliCpu, Resources, Seconds

_STOPPED = GuestState(GuestPhase.STOPPED, MilliCpu(0), Bytes(0))


@dataclass(frozen=True, slots=True)
class SimulatedGuests:
    """Makes light guests; ``load_of`` says what each VM plays."""

    sockets: PodSockets
    clock: Clock
    load_of: Callable[[ObjectName], Load]

    @property
    def description(self) -> str:
        """One line for people."""
        return "simulated guests (they play a load and answer like node_exporter)"

    def create(self, spec: GuestSpec) -> Guest:
        """A guest that is ready to be started; touches nothing yet."""
        return SimulatedGuest(spec, self)


@dataclass(slots=True)
class _Running:
    """What a guest has from its start to its stop."""

    since: Instant
    kernel: LightKernel
    faces: list[Serving]


class SimulatedGuest:
    """One light guest. It runs from the moment it is started."""

    def __init__(self, spec: GuestSpec, made_by: SimulatedGuests) -> None:
        self._spec = spec
        self._made_by = made_by
        self._running: _Running | None = None

    async def start(self) -> None:
        """Opens the guest's metrics and control ports on its pod's address. Raises ``GuestError``."""
        if self._running is not None:
            return
        spec, made_by = self._spec, self._made_by
        size = Resources(spec.cpu_use, spec.mem_use)
        kernel = LightKernel.booted(made_by.load_of(spec.vm), size, spec.cpu_max.whole_cpus)
        running = _Running(made_by.clock.now(), kernel, [])
        face = Face(self._now, self._press, time.time())
        self._running = running
        try:
            for port in (METRICS_PORT, DAEMON_PORT):
                running.faces.append(await Serving.on(await made_by.sockets.listen(spec.pod, port), face.serve))
        except (OSError, NetworkError) as error:
            await self.stop()
            raise GuestError(f"{spec.vm}: the light guest cannot listen at {spec.network.address}: {error}") from error
        except BaseException:
            await self.stop()
            raise

    async def state(self) -> GuestState:
        """What the guest has now."""
        if self._running is None:
            return _STOPPED
        size = self._now().size
        return GuestState(GuestPhase.RUNNING, size.cpu, size.mem)

    async def set_cpu(self, use: MilliCpu) -> None:
        """Resizes at once. Raises ``GuestError`` for a size outside of the VM's bounds."""
        if not MilliCpu(0) < use <= self._spec.cpu_max:
            raise GuestError(f"{self._spec.vm}: CPU must be above zero and at most {self._spec.cpu_max}, not {use}")
        kernel = self._now()
        self._replace(kernel.resized(Resources(use, kernel.asked.mem)))

    async def set_memory(self, use: Bytes) -> None:
        """Resizes at once, as far down as memory is not in use. Raises ``GuestError`` for a size out of bounds."""
        if not self._spec.mem_min <= use <= self._spec.mem_max:
            bounds = f"between {self._spec.mem_min} and {self._spec.mem_max}"
            raise GuestError(f"{self._spec.vm}: memory must be {bounds}, not {use}")
        kernel = self._now()
        self._replace(kernel.resized(Resources(kernel.asked.cpu, use)))

    async def stop(self) -> None:
        """Closes its ports and every connection to them."""
        if self._running is not None:
            for face in self._running.faces:
                await face.close()
            self._running = None

    def _press(self, demand: Demand | None) -> None:
        self._replace(self._now().under(demand))

    def _now(self) -> LightKernel:
        """The guest at this moment. Raises ``GuestError`` where it does not run."""
        running = self._runs()
        running.kernel = running.kernel.advanced(Seconds(self._made_by.clock.now() - running.since))
        return running.kernel

    def _replace(self, kernel: LightKernel) -> None:
        self._runs().kernel = kernel

    def _runs(self) -> _Running:
        if self._running is None:
            raise GuestError(f"{self._spec.vm}: the guest has stopped")
        return self._running
