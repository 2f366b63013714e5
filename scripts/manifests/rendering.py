"""The plain manifests from what ``helm template`` prints (pure).

- A folder of templates is one plain file, whose objects are in the order of the templates.
- The plain files keep the comments of the templates, because people read them.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from typing import Any, Final

import yaml

from protocol.kubernetes.objects import text

CHART: Final = "deploy/kubernetes/chart/autoscale"
NAMESPACE: Final = "kube-system"
PLAIN: Final[Mapping[str, str]] = {
    "deploy/scheduler-deploy.yaml": "scheduler",
    "deploy/kubernetes/agent-daemonset.yaml": "agent-node",
    "deploy/kubernetes/agent-sidecar.yaml": "agent-sidecar",
    "deploy/kubernetes/dashboard.yaml": "dashboard",
    "deploy/kubernetes/expander.yaml": "expander",
    "deploy/kubernetes/groups.yaml": "groups",
    "deploy/kubernetes/injector.yaml": "injector",
    "deploy/kubernetes/neonvm-controller.yaml": "neonvm-controller",
    "deploy/kubernetes/neonvm-devices.yaml": "neonvm-devices",
    "deploy/kubernetes/neonvm-network.yaml": "neonvm-network",
    "deploy/kubernetes/neonvm-policy.yaml": "neonvm-policy",
    "deploy/kubernetes/with-certificates/agent-daemonset.yaml": "agent-node",
    "deploy/kubernetes/with-certificates/injector.yaml": "injector",
    "deploy/kubernetes/with-certificates/scheduler-leader.yaml": "scheduler-leader",
    "deploy/kubernetes/with-certificates/scheduler.yaml": "scheduler",
    "deploy/kubernetes/with-pods/agent-daemonset.yaml": "agent-node",
    "deploy/kubernetes/with-pods/groups.yaml": "groups",
    "deploy/kubernetes/with-pods/injector.yaml": "injector",
    "deploy/kubernetes/with-pods/scheduler.yaml": "scheduler",
}
"""Which folder of templates a plain file is rendered from."""

KUBERNETES: Final = "v1.36.0"
"""The version of kube-scheduler in the plain file; its users set the cluster's own."""

VALUES: Final[Mapping[str, Any]] = {
    "release": False,
    "certificates": {"enabled": False},
    "agent": {"sidecar": {"enabled": True}},
    "groups": {"enabled": True},
    "dashboard": {"enabled": True},
    "expander": {"enabled": True},
    "neonvm": {"policy": {"namespaces": [""]}},
}
"""All components, without values that only a release has. Each file works alone, so there is no TLS between them."""

INJECTING: Final[Mapping[str, Any]] = {
    **VALUES,
    "certificates": {"enabled": True},
    "expander": {"enabled": False},
}
"""The injector alone, for pods that others make."""

WITH_CERTIFICATES: Final[Mapping[str, Any]] = {"release": False}
"""What the chart installs by default: everything that works together with TLS."""

WITH_PODS: Final[Mapping[str, Any]] = {**WITH_CERTIFICATES, "pods": {"enabled": True}}
"""The same, also for postgres in ordinary pods."""


def values_of(file: str) -> Mapping[str, Any]:
    """Values with which a plain file is rendered."""
    if file.startswith("deploy/kubernetes/with-certificates/"):
        return WITH_CERTIFICATES
    if file.startswith("deploy/kubernetes/with-pods/"):
        return WITH_PODS
    return INJECTING if file == "deploy/kubernetes/injector.yaml" else VALUES


# In the order in which ``kubectl apply`` creates them: accounts before what uses them, the webhook last.
_ORDER: Final = (
    "account",
    "secrets",
    "certificates",
    "config",
    "kube-scheduler",
    "service",
    "workload",
    "policy",
    "webhook",
)
_SOURCE: Final = re.compile(r"^# Source: \S+?/templates/(\S+)\n", re.MULTILINE)
_HEAD: Final = "# Rendered from {chart}/templates/{folder} by `make manifests`: edit that, not this.\n"


def plain_files(printed: str, templates: Mapping[str, str]) -> dict[str, str]:
    """The text of each plain file, if all are rendered with the same values. ``templates`` are the texts of all
    templates by their path below ``templates``.

    Raises ``ValueError`` if a template is in no plain file's order.
    """
    parts: dict[str, list[str]] = {}
    # Helm marks each document with the template that it comes from.
    for part in re.split(r"^---\n", printed, flags=re.MULTILINE):
        if source := _SOURCE.match(part):
            parts.setdefault(source[1], []).append(_tidy(part[source.end() :]))
    return {file: _file(folder, parts, templates) for file, folder in PLAIN.items()}


def _file(folder: str, found: Mapping[str, list[str]], templates: Mapping[str, str]) -> str:
    paths = [path for path in found if path.startswith(f"{folder}/")]
    if strange := {path.rpartition("/")[2].removesuffix(".yaml") for path in paths} - set(_ORDER):
        raise ValueError(f"templates/{folder} has {', '.join(sorted(strange))}, which have no place in the plain file")
    # Helm prints objects in its own order of kinds.
    paths.sort(key=lambda path: _ORDER.index(path.rpartition("/")[2].removesuffix(".yaml")))
    parts = [part for path in paths for part in sorted(found[path], key=lambda part: _place(part, templates[path]))]
    return _HEAD.format(chart=CHART, folder=folder) + "---\n".join(parts)


def _place(part: str, template: str) -> int:
    """Position of an object in a template: templates write kinds and names as they are."""
    manifest = yaml.safe_load(part)
    return template.find(f"kind: {text(manifest, 'kind')}\nmetadata:\n  name: {text(manifest, 'metadata', 'name')}\n")


def _tidy(part: str) -> str:
    # Conditions in templates leave blank lines behind.
    lines = (line.rstrip() for line in part.splitlines())
    return "".join(f"{line}\n" for line in lines if line)


def lock(inputs: Mapping[str, bytes], files: Mapping[str, str]) -> str:
    """One line for each plain file with a digest of it and of all that it is rendered from.

    ``inputs`` are the files of the chart by their path in it. A change to a template leaves the lines of other
    components as they are, so that two people seldom change the same line.
    """
    return "".join(f"{_digest(inputs, file, content)}  {file}\n" for file, content in sorted(files.items()))


def _digest(inputs: Mapping[str, bytes], file: str, content: str) -> str:
    digest = hashlib.sha256(repr((KUBERNETES, NAMESPACE, values_of(file))).encode())
    for path in sorted(candidate for candidate in inputs if _concerns(candidate, PLAIN[file])):
        # With path and length: without them, moving bytes from one file to the next would not change the digest.
        digest.update(f"{path} {len(inputs[path])}\n".encode() + inputs[path])
    digest.update(content.encode())
    return digest.hexdigest()


def _concerns(path: str, folder: str) -> bool:
    shared = path in {"Chart.yaml", "values.yaml"} or path.endswith(".tpl") or path.startswith("settings/")
    return shared or path.startswith(f"templates/{folder}/")
