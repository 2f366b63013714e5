"""Names of a bill's lines: by VM, namespace, group, node, or the value of a label."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from scheduler_plugin.history.costs.bills import KeyOf

NONE: Final = "(none)"
LABEL: Final = "label="

KEYS: Final[Mapping[str, KeyOf]] = MappingProxyType(
    {
        "vm": lambda facts: str(facts.vm),
        "namespace": lambda facts: facts.vm.namespace,
        "group": lambda facts: f"{facts.vm.namespace}/{facts.group}" if facts.group else NONE,
        "node": lambda facts: facts.node or NONE,
    }
)


def key_of(by: str) -> KeyOf:
    """The way to group by ``by``: one of ``KEYS``, or ``label=KEY``. Raises ``ValueError``.

    >>> from protocol.messages import ObjectName
    >>> from scheduler_plugin.history.core.samples import VmRecord
    >>> facts = VmRecord(ObjectName("default", "db"), labels=(("team", "a"),))
    >>> key_of("vm")(facts), key_of("label=team")(facts), key_of("label=tier")(facts)
    ('default/db', 'a', '(none)')
    """
    # ``label=`` alone names no label.
    label = by.removeprefix(LABEL)
    if by.startswith(LABEL) and label:
        return lambda facts: dict(facts.labels).get(label, NONE)
    if by not in KEYS:
        raise ValueError(f"expected one of {', '.join(KEYS)} or label=KEY, got {by!r}")
    return KEYS[by]
