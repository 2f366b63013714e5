"""The manifests that this release ships, as far as checks need them: who may do what, and which pods there will be."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Final

import yaml

from protocol.kubernetes.objects import Json

_DEPLOY: Final = Path(__file__).parents[4] / "deploy"
FILES: Final = (
    "scheduler-deploy.yaml",
    "kubernetes/agent-daemonset.yaml",
    "kubernetes/agent-sidecar.yaml",
    "kubernetes/expander.yaml",
    "kubernetes/groups.yaml",
    "kubernetes/injector.yaml",
    "kubernetes/neonvm-controller.yaml",
    "kubernetes/neonvm-devices.yaml",
    "kubernetes/neonvm-network.yaml",
)


@cache
def shipped() -> tuple[Json, ...]:
    """Every object of them. They are the project's own, so plain YAML is read."""
    texts = [path.read_text() for each in FILES if (path := _DEPLOY / each).exists()]
    return tuple(each for text in texts for each in yaml.safe_load_all(text) if isinstance(each, dict))
