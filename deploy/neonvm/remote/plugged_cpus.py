"""CPUs that come and go in the slots of a QEMU, as runners of NeonVM's have it with ``cpuScalingMode: QmpScaling``.

Such a runner only records the CPU that is ordered; the guest has the slots that are filled.
"""

from __future__ import annotations

from typing import Final

import msgspec

from deploy.neonvm.ports import GuestError
from deploy.neonvm.qemu.machine import Machine
from protocol.runtime.clock import Clock
from protocol.units import Instant, Seconds

_SECONDS: Final = Seconds(3.0)
_PAUSE: Final = Seconds(0.1)
_PLUGGED: Final = "/machine/peripheral/cpu"


class _Slot(msgspec.Struct, frozen=True, rename="kebab"):
    type: str
    props: dict[str, int]
    qom_path: str | None = None

    @property
    def core(self) -> int:
        return self.props.get("core-id", 0)


async def count_plugged(machine: Machine, who: str) -> int:
    """The number of CPUs that the guest of ``who`` has. Raises ``GuestError``."""
    return sum(slot.qom_path is not None for slot in await _slots(machine, who))


async def plug(machine: Machine, who: str, wanted: int, clock: Clock) -> None:
    """Gives the guest of ``who`` this many CPUs. Raises ``GuestError``."""
    # Plugged in from the first slot and out from the last; QEMU promises no order.
    slots = sorted(await _slots(machine, who), key=lambda slot: slot.core)
    plugged, empty = ([cpu for cpu in slots if (cpu.qom_path is None) is is_empty] for is_empty in (False, True))
    for slot in empty[: max(0, wanted - len(plugged))]:
        # Under NeonVM's own names, so that its controller finds them when it is back.
        await machine.call("device_add", {"driver": slot.type, "id": f"cpu{slot.core}", **slot.props})
    # CPUs with which the machine booted have no name of this kind, and cannot be unplugged.
    removable = [cpu.qom_path for cpu in reversed(plugged) if cpu.qom_path and cpu.qom_path.startswith(_PLUGGED)]
    for path in removable[: max(0, len(plugged) - wanted)]:
        await machine.call("device_del", {"id": path})
    deadline = Instant(clock.now() + _SECONDS)
    # A guest releases a CPU when it likes, so the order's answer says nothing.
    while (count := await count_plugged(machine, who)) != wanted:
        if clock.now() >= deadline:
            raise GuestError(f"{who}: {wanted} CPUs were to be plugged in, and {count} are")
        await clock.sleep(_PAUSE)


async def _slots(machine: Machine, who: str) -> list[_Slot]:
    try:
        return msgspec.convert(await machine.call("query-hotpluggable-cpus"), list[_Slot])
    except msgspec.ValidationError as error:
        raise GuestError(f"{who}: its QEMU cannot say its CPUs: {error}") from error
