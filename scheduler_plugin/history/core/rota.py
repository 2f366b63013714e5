"""The choice of agents to ask at a look: those with news first, then those that were asked longest ago."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from protocol.messages import ObjectName
from scheduler_plugin.history.core.samples import Millis


def next_asked(
    vms: Iterable[ObjectName], news: set[ObjectName], asked: Mapping[ObjectName, Millis], most: int
) -> list[ObjectName]:
    """At most ``most`` of ``vms``; ``asked`` says when each was asked last.

    >>> a, b, c = (ObjectName("d", name) for name in "abc")
    >>> [vm.name for vm in next_asked([a, b, c], {c}, {a: 5, b: 3, c: 9}, 2)]
    ['c', 'b']
    """
    # By name last, so that equal ones take turns in a fixed order.
    return sorted(vms, key=lambda vm: (vm not in news, asked.get(vm, 0), vm))[:most]
