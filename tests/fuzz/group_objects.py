"""The objects that ``autoscale-groups`` reads: one valid example of each, and how the program reads it."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import yaml

from protocol.kubernetes.objects import Json, child
from protocol.kubernetes.resources import HORIZONTAL_AUTOSCALERS
from protocol.names import ANNOTATION_ORIGINAL
from scheduler_plugin.groups.controllers.companions import restore
from scheduler_plugin.groups.controllers.policies import memory_of
from scheduler_plugin.groups.core.tortoise.configuration import Configuration
from scheduler_plugin.groups.core.tortoise.decide import decide
from scheduler_plugin.groups.core.tortoise.tortoise_memory import ObservedAutoscalers
from scheduler_plugin.groups.objects.autoscalers import (
    metrics_missing_since,
    read_autoscaler,
    write_autoscaler,
)
from scheduler_plugin.groups.objects.hvpa.decoding import decode
from scheduler_plugin.groups.objects.tortoise.global_configuration import read_configuration
from scheduler_plugin.groups.objects.tortoise.manifest import parse_tortoise
from scheduler_plugin.groups.objects.tortoise.tortoise_status import read_memory, read_peaks, write_status
from scheduler_plugin.groups.objects.vm_group import parse_vm_group
from tests.scheduler_plugin.groups.core.tortoise.cluster_model import BEGIN, recommendation, workload

EXAMPLES: Final = Path(__file__).parents[1] / "scheduler_plugin/groups/hvpa_examples"
USUAL: Final = Configuration()
SLOT: Final[Json] = {
    "from": 9,
    "to": 10,
    "weekday": "Monday",
    "timezone": "Asia/Tokyo",
    "value": 6,
    "updatedAt": "2026-05-04T00:00:00Z",
}
FLOOR: Final[Json] = {"vCPUs": 2, "mem": "8Gi", "until": "2026-05-04T10:00:00Z"}
CONFIGURATION: Final[Json] = {"PreferredMaxReplicas": 10, "MaximumCPURequest": "5", "TortoiseUpdateInterval": "15s"}
TORTOISE: Final[Json] = {
    "metadata": {"namespace": "zoo", "name": "lovely"},
    "spec": {
        "updateMode": "Auto",
        "targetRefs": {"scaleTargetRef": {"kind": "Deployment", "name": "shop"}, "horizontalPodAutoscalerName": "a"},
        "resourcePolicy": [
            {"containerName": "app", "minAllocatedResources": {"cpu": 1}, "maxAllocatedResources": {"memory": "4Gi"}}
        ],
        "autoscalingPolicy": [{"containerName": "app", "policy": {"cpu": "Horizontal", "memory": "Vertical"}}],
        "maxReplicas": 40,
        "deletionPolicy": "DeleteAll",
    },
    "status": {
        "tortoisePhase": "Working",
        "autoscalingPolicy": [{"containerName": "app", "policy": {"cpu": "Horizontal"}}],
        "containerResourcePhases": [
            {
                "containerName": "app",
                "resourcePhases": {"cpu": {"phase": "Working", "lastTransitionTime": "2026-04-01T00:00:00Z"}},
            }
        ],
        "containerRecommendationFromVPA": [
            {"containerName": "app", "maxRecommendation": {"cpu": {"quantity": "700m"}}}
        ],
        "recommendations": {
            "horizontal": {"minReplicas": [SLOT], "maxReplicas": [SLOT, SLOT]},
            "vertical": {"cpuPeaks": [SLOT], "memoryPeaks": [SLOT]},
        },
        "times": {"requestsLowered": "2026-05-04T00:00:00Z"},
    },
}
HPA: Final[Json] = {
    "metadata": {
        "namespace": "zoo",
        "name": "a",
        "annotations": {ANNOTATION_ORIGINAL: '{"group":{"kind":"Tortoise","name":"b"},"written":{"minReplicas":3}}'},
    },
    "spec": {
        "minReplicas": 3,
        "maxReplicas": 20,
        "metrics": [
            {
                "type": "ContainerResource",
                "containerResource": {"name": "cpu", "container": "app", "target": {"averageUtilization": 80}},
            },
            {"type": "Resource", "resource": {"name": "cpu"}},
            {"type": "External"},
        ],
    },
    "status": {
        "conditions": [
            {
                "type": "ScalingActive",
                "status": "False",
                "reason": "FailedGetResourceMetric",
                "lastTransitionTime": "2026-05-04T00:00:00Z",
            }
        ]
    },
}
HVPAS: Final[tuple[Json, ...]] = tuple(yaml.safe_load(path.read_text()) for path in sorted(EXAMPLES.glob("*.yaml")))


def tortoise(found: Json) -> object:
    """The object, its memory, a decision, and what is written of it."""
    parsed, status = parse_tortoise(found, USUAL), child(found, "status")
    read_peaks(status, USUAL)
    seen = ObservedAutoscalers(None, recommendation(1.0))
    decision, memory = decide(parsed.spec, workload(6, 2), seen, read_memory(status, USUAL), BEGIN)
    return write_status(memory, decision)


def hpa(found: Json) -> object:
    """The HPA of a Tortoise, what would be written, and what would be put back."""
    return (
        write_autoscaler(read_autoscaler(found)),
        metrics_missing_since(found),
        restore(HORIZONTAL_AUTOSCALERS, found),
    )


def hvpa(found: Json) -> object:
    """An Hvpa and its memory."""
    memory_of(child(found, "status"))
    return decode(found)


def configuration(document: Json) -> object:
    """Tortoise's global configuration."""
    return read_configuration(document)


def vm_group(found: Json) -> object:
    """A VirtualMachineGroup."""
    return parse_vm_group(found)
