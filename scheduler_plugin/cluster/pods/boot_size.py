"""How large a VM's pod boots its guest: its arguments have the VM's spec of the moment at which it was made.

Rules that hold here:

- Only our own controller's pods count, whose arguments are ``args``: the guests of NeonVM's pods boot with the least
  memory of their VMs.
- What cannot be read boots nothing.
"""

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
"""Characters of arguments that are read only once: people may make a pod with megabytes of them."""


class _Spec(msgspec.Struct, frozen=True):
    guest: dict[str, object]


_SPEC: Final = msgspec.json.Decoder(_Spec)


def boots_with(containers: list[Container]) -> Resources:
    """The size with which the guest of these containers boots; zero if they do not say it."""
    runner = next((each for each in containers if each.name == RUNNER_CONTAINER), None)
    words = [] if runner is None or not isinstance(runner.args, list) else runner.args
    dump = value_of([each for each in words if isinstance(each, str)], SPEC_FLAG)
    if not dump:
        return ZERO
    return _use.__wrapped__(dump) if len(dump) > _LONGEST_REMEMBERED else _use(dump)


@lru_cache(1024)
def _use(dump: str) -> Resources:
    try:
        guest = _SPEC.decode(unpacked(dump)).guest
        return parse_virtual_machine({"metadata": {"namespace": "", "name": ""}, "spec": {"guest": guest}}).use
    except (ArgumentsError, InvalidObjectError, msgspec.DecodeError, ValueError, RecursionError):
        return ZERO
