"""The path of a write, and the object version that it is for."""

from __future__ import annotations

import pytest

from protocol.kubernetes.objects import Json
from protocol.kubernetes.resources import HVPAS
from protocol.messages import ObjectName
from scheduler_plugin.groups.objects.writes import Write

NAME = ObjectName("default", "web")
SPEC: Json = {"spec": {"replicas": 3}}


@pytest.mark.parametrize(
    ("body", "version", "guarded"),
    [
        (SPEC, "", SPEC),
        (SPEC, "7", {**SPEC, "metadata": {"resourceVersion": "7"}}),
        ({"metadata": {"labels": {"a": "b"}}}, "7", {"metadata": {"labels": {"a": "b"}, "resourceVersion": "7"}}),
    ],
)
def test_writes_carry_resource_version(body: Json, version: str, guarded: Json) -> None:
    assert Write("replicas", HVPAS, NAME, body, version=version).guarded_body == guarded


def test_object_paths_for_create_and_write() -> None:
    written = Write("replicas", HVPAS, NAME, SPEC, "scale")
    made = Write("hvpa", HVPAS, NAME, SPEC, creates=True)
    assert written.path == f"{HVPAS.path('default')}/web/scale"
    assert made.path == HVPAS.path("default")
