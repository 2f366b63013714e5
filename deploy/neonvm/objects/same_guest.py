"""The parts of its source that a target pod takes over, because its guest was started with them (pure).

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

# Some container runtimes put a scheme such as `docker-pullable://` in front.
_PINNED: Final = re.compile(r"(?:[a-z-]+://)?(?P<image>\S+@sha256:[0-9a-f]{64})")


def with_guest_of(target: Json, source: Json) -> Json:
    """``target`` with the machine and the disk's base of ``source``."""
    spec = child(target, "spec")
    return {
        **target,
        "spec": {
            **spec,
            # The runner's arguments are the record of the booted machine.
            "containers": [_same(container, _runner(source), "args") for container in items(spec, "containers")],
            "initContainers": [_same(container, _disk(source), "image") for container in items(spec, "initContainers")],
        },
    }


def _same(container: Json, of_source: Json, field: str) -> Json:
    is_same = text(container, "name") == text(of_source, "name")
    return {**container, field: of_source[field]} if is_same and of_source.get(field) else container


def _runner(pod: Json) -> Json:
    return next((container for container in items(pod, "spec", "containers") if is_runner(container)), {})


def _disk(pod: Json) -> Json:
    """The container that copied the source's disk, with the image that it ran from."""
    copier = next(
        (container for container in items(pod, "spec", "initContainers") if text(container, "name") == DISK), {}
    )
    statuses = [status for status in items(pod, "status", "initContainerStatuses") if text(status, "name") == DISK]
    # The status names the digest that really ran; a tag may have been pushed again since.
    pinned = _PINNED.fullmatch(text(statuses[0], "imageID")) if statuses else None
    # Without a digest, a local image for instance, the tag is the best there is.
    return {**copier, "image": pinned["image"]} if copier and pinned else copier
