"""Hvpas for tests: one with a target, an HPA and a VPA, and what is changed of it."""

from __future__ import annotations

from typing import Any

from scheduler_plugin.groups.core.hvpa.spec import HvpaSpec
from scheduler_plugin.groups.objects.hvpa.decoding import decode

TARGET = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"}
HPA = {"minReplicas": 2, "maxReplicas": 8}
VPA = {"resourcePolicy": {"containerPolicies": [{"containerName": "app", "maxAllowed": {"cpu": 4}}]}}
WEIGHT = [{"vpaWeight": 0.5}]
MILLION = 1_000_000


def hvpa(**spec: Any) -> dict[str, Any]:
    """An Hvpa with a target, an HPA and a VPA; None leaves a field out."""
    whole = {"targetRef": TARGET, "hpaTemplate": HPA, "vpaTemplate": VPA, **spec}
    return {"spec": {key: value for key, value in whole.items() if value is not None}}


def spec_of(**spec: Any) -> HvpaSpec:
    return decode(hvpa(**spec)).spec
