"""Annotations of a new postgres pod: its template's requests, and a floor if it replaces a larger pod. Pure.

The requests stay as in the template, because a larger pod might fit no node, exceed a quota or preempt others. Once the
pod runs, its agent requests the larger size because of the floor, which expires.
"""

from __future__ import annotations

import msgspec

from protocol.floors import Floor, encode_floor
from protocol.kubernetes.objects import Json, annotations_of, child
from protocol.names import ANNOTATION_FIRST_REQUESTS, ANNOTATION_FLOOR
from protocol.pod_database import parse_pod_database
from protocol.units import Resources


def annotate(pod: Json, before: Resources | None, until: float) -> list[Json]:
    """JSON Patch (RFC 6902) that annotates a new pod; ``before`` is the size of the pod that it replaces, if any.

    The floor ends at ``until`` (Unix seconds). Raises ``InvalidObjectError`` for a pod that cannot be resized.
    """
    # Ignore an existing annotation, with which the creator could set another minimum than the template's requests.
    owners = {key: text for key, text in annotations_of(pod).items() if key != ANNOTATION_FIRST_REQUESTS}
    database = parse_pod_database({**pod, "metadata": {**child(pod, "metadata"), "annotations": owners}})
    first = {"cpu": database.use.cpu.quantity(), "mem": database.use.mem.quantity()}
    operations = [_annotation(ANNOTATION_FIRST_REQUESTS, msgspec.json.encode(first).decode())]
    size = database.use if before is None else database.use.at_least(before.at_most(database.bounds.max))
    if size != database.use:
        operations.append(_annotation(ANNOTATION_FLOOR, encode_floor(Floor(size, until))))
    return operations


def _annotation(name: str, text: str) -> Json:
    # The pod has annotations, because its bounds are one. JSON Pointer escapes a slash as ~1.
    return {"op": "add", "path": f"/metadata/annotations/{name.replace('/', '~1')}", "value": text}
