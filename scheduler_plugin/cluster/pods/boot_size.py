"""The size with which a VM's pod boots its guest: its arguments hold the VM's spec as of its creation."""

from __future__ import annotations

from functools import lru_cache
from typing import Final

import msgspec

from protocol.names import RUNNER_CONTAINER
from protocol.units import ZERO, Resources
from protocol.virtual_machine import InvalidObjectError, parse_virtual_machine
from protocol.vm_arguments import SPEC_FLAG, ArgumentsError, unpacked, value_of
from scheduler_plugin.cluster.pods.shapes import Container

_LONGEST_REMEMBERED: Final = 4096
"""Characters. Longer arguments bypass the cache: anybody may create pods with megabytes of them."""


class _Spec(msgspec.Struct, frozen=True):
    guest: dict[str, object]


_SPEC: Final = msgspec.json.Decoder(_Spec)


def boots_with(containers: list[Container]) -> Resources:
    """The size with which the guest of these containers boots; zero if they do not say it."""
    # Only our controller's pods have ``args``. NeonVM's use ``command``, and their guests boot with the VM's least
    # memory.
    runner = next((container for container in containers if container.name == RUNNER_CONTAINER), None)
    words = [] if runner is None or not isinstance(runner.args, list) else runner.args
    dump = value_of([word for word in words if isinstance(word, str)], SPEC_FLAG)
    if not dump:
        return ZERO
    return _use.__wrapped__(dump) if len(dump) > _LONGEST_REMEMBERED else _use(dump)


@lru_cache(1024)
def _use(dump: str) -> Resources:
    try:
        guest = _SPEC.decode(unpacked(dump)).guest
        # The parser wants a whole object; the dump has the guest's part only.
        return parse_virtual_machine({"metadata": {"namespace": "", "name": ""}, "spec": {"guest": guest}}).use
    except (ArgumentsError, InvalidObjectError, msgspec.DecodeError, ValueError, RecursionError):
        return ZERO
