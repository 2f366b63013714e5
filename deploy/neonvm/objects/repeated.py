"""The labels and annotations that a runner pod repeats of its VM: NeonVM's own scheduler reads pods alone (pure).

Our own permits stay on the VM: nobody reads them on the pod.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Final

from protocol.kubernetes.objects import Json, annotations_of, child, labels_of
from protocol.names import (
    ANNOTATION_APPROVED,
    ANNOTATION_OVERCOMMIT,
    ANNOTATION_REQUESTED,
    ANNOTATION_RESOURCES,
    ANNOTATION_SCALING_UNIT,
    AUTO_MIGRATION,
    LABEL_ALWAYS_MIGRATE,
    LABEL_ENABLED,
)

_LABELS: Final = (LABEL_ENABLED, AUTO_MIGRATION, LABEL_ALWAYS_MIGRATE)
_ANNOTATIONS: Final = (ANNOTATION_SCALING_UNIT, ANNOTATION_REQUESTED, ANNOTATION_APPROVED)


def repeated_labels(vm: Json) -> dict[str, str | None]:
    """The VM's labels that its pod must have as well, by name; None for one that the VM does not have."""
    return {name: labels_of(vm).get(name) for name in _LABELS}


def repeated_annotations(vm: Json) -> dict[str, str | None]:
    """The same of annotations, with the sizes in the VM's spec."""
    overcommit = child(vm, "spec", "overcommit")
    return {
        # NeonVM's scheduler writes an agent's request and its grant on the VM, and answers the agent once the pod has
        # the same.
        **{name: annotations_of(vm).get(name) for name in _ANNOTATIONS},
        # NeonVM's scheduler panics if a VM's pod lacks it.
        ANNOTATION_RESOURCES: _text(_sizes(child(vm, "spec", "guest"))),
        ANNOTATION_OVERCOMMIT: _text(overcommit) if overcommit else None,
    }


def present(values: Mapping[str, str | None]) -> dict[str, str]:
    """Those that the VM has.

    >>> present({"a": "1", "b": None})
    {'a': '1'}
    """
    return {name: value for name, value in values.items() if value is not None}


def to_repeat(vm: Json, pod: Json) -> Json:
    """The metadata in which ``pod`` differs from its ``vm``, as a merge patch has it; empty if it does not."""
    labels, annotations = labels_of(pod), annotations_of(pod)
    differing = {
        # A None in a merge patch removes the key.
        "labels": {name: value for name, value in repeated_labels(vm).items() if labels.get(name) != value},
        "annotations": {
            name: value for name, value in repeated_annotations(vm).items() if annotations.get(name) != value
        },
    }
    return {kind: values for kind, values in differing.items() if values}


def _sizes(guest: Json) -> Json:
    """CPU and memory with the defaults that ``parse_virtual_machine`` fills in."""
    return {
        "cpus": _range(child(guest, "cpus")),
        "memorySlots": _range(child(guest, "memorySlots")),
        "memorySlotSize": guest.get("memorySlotSize", "1Gi"),
    }


def _range(found: Json) -> Json:
    least = found.get("min", 1)
    use = found.get("use", least)
    return {"min": least, "max": found.get("max", use), "use": use}


def _text(found: Json) -> str:
    # Compact, as Go's encoder writes it.
    return json.dumps(found, separators=(",", ":"))
