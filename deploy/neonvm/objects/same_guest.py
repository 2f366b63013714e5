"""What a target pod takes over from its source, because the guest that comes to it was started with it (pure).

A guest brings its memory and what it has written to its disk. The rest the target makes again: the machine, and the
disk's base. Both must be those of the source, whatever the VM's spec or the image's tag has come to mean since.
"""

from __future__ import annotations

import re
from typing import Final

from deploy.neonvm.objects.pods import is_runner
from protocol.kubernetes.objects import Json, child, items, text

DISK: Final = "init"
"""The init container that copies the disk's base."""

_PINNED: Final = re.compile(r"(?:[a-z-]+://)?(?P<image>\S+@sha256:[0-9a-f]{64})")


def with_guest_of(target: Json, source: Json) -> Json:
    """``target`` with the machine and the disk's base of ``source``.

    The base is named by its digest where the source's status has one: a tag may have been pushed again.
    """
    spec = child(target, "spec")
    return {
        **target,
        "spec": {
            **spec,
            "containers": [_same(each, _runner(source), "args") for each in items(spec, "containers")],
            "initContainers": [_same(each, _disk(source), "image") for each in items(spec, "initContainers")],
        },
    }


def _same(container: Json, of_source: Json, field: str) -> Json:
    is_same = text(container, "name") == text(of_source, "name")
    return {**container, field: of_source[field]} if is_same and of_source.get(field) else container


def _runner(pod: Json) -> Json:
    return next((each for each in items(pod, "spec", "containers") if is_runner(each)), {})


def _disk(pod: Json) -> Json:
    """The container that copied the source's disk, with the image that it ran from."""
    found = next((each for each in items(pod, "spec", "initContainers") if text(each, "name") == DISK), {})
    statuses = [each for each in items(pod, "status", "initContainerStatuses") if text(each, "name") == DISK]
    pinned = _PINNED.fullmatch(text(statuses[0], "imageID")) if statuses else None
    return {**found, "image": pinned["image"]} if found and pinned else found
