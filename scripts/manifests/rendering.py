"""Plain manifests from the output of ``helm template``: one file per folder of templates, comments included (pure)."""

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
"""The folder of templates of each plain file."""

KUBERNETES: Final = "v1.36.0"
"""The version of kube-scheduler in the plain file; users set their cluster's version."""

VALUES: Final[Mapping[str, Any]] = {
    "release": False,
    "certificates": {"enabled": False},
    "agent": {"sidecar": {"enabled": True}},
    "groups": {"enabled": True},
    "dashboard": {"enabled": True},
    "expander": {"enabled": True},
    "neonvm": {"policy": {"namespaces": [""]}},
}
"""All components, without a release's images, and without TLS, so that each file can be used alone."""

INJECTING: Final[Mapping[str, Any]] = {
    **VALUES,
    "certificates": {"enabled": True},
    "expander": {"enabled": False},
}
"""The injector alone, for pods of NeonVM's own controller."""

WITH_CERTIFICATES: Final[Mapping[str, Any]] = {"release": False}
"""The chart's defaults, with TLS."""

WITH_PODS: Final[Mapping[str, Any]] = {**WITH_CERTIFICATES, "pods": {"enabled": True}}
"""The chart's defaults, and postgres in pods."""


def values_of(file: str) -> Mapping[str, Any]:
    """The values of a plain file."""
    if file.startswith("deploy/kubernetes/with-certificates/"):
        return WITH_CERTIFICATES
    if file.startswith("deploy/kubernetes/with-pods/"):
        return WITH_PODS
    return INJECTING if file == "deploy/kubernetes/injector.yaml" else VALUES


# Order of creation: accounts before their users, the webhook last.
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
    """The text of each plain file. ``templates`` are the chart's templates by path.

    Raises ``ValueError`` if a template's name is not in ``_ORDER``.
    """
    parts: dict[str, list[str]] = {}
    # Helm prefixes each document with a comment that names its template.
    for part in re.split(r"^---\n", printed, flags=re.MULTILINE):
        if source := _SOURCE.match(part):
            parts.setdefault(source[1], []).append(_tidy(part[source.end() :]))
    return {file: _file(folder, parts, templates) for file, folder in PLAIN.items()}


def _file(folder: str, rendered: Mapping[str, list[str]], templates: Mapping[str, str]) -> str:
    paths = [path for path in rendered if path.startswith(f"{folder}/")]
    if unknown := {path.rpartition("/")[2].removesuffix(".yaml") for path in paths} - set(_ORDER):
        raise ValueError(f"templates/{folder}: add {', '.join(sorted(unknown))} to the order of plain files")
    # Helm prints objects in its own order of kinds.
    paths.sort(key=lambda path: _ORDER.index(path.rpartition("/")[2].removesuffix(".yaml")))
    parts = [part for path in paths for part in sorted(rendered[path], key=lambda part: _index(part, templates[path]))]
    return _HEAD.format(chart=CHART, folder=folder) + "---\n".join(parts)


def _index(part: str, template: str) -> int:
    """Position of an object in its template, where kind and name are literal."""
    manifest = yaml.safe_load(part)
    return template.find(f"kind: {text(manifest, 'kind')}\nmetadata:\n  name: {text(manifest, 'metadata', 'name')}\n")


def _tidy(part: str) -> str:
    # Conditions in templates leave blank lines.
    lines = (line.rstrip() for line in part.splitlines())
    return "".join(f"{line}\n" for line in lines if line)


def lock(inputs: Mapping[str, bytes], files: Mapping[str, str]) -> str:
    """One line per plain file, with a digest of the file and its inputs.

    ``inputs`` are the files of the chart by path. A template only affects the lines of its component, to avoid merge
    conflicts.
    """
    return "".join(f"{_digest(inputs, file, content)}  {file}\n" for file, content in sorted(files.items()))


def _digest(inputs: Mapping[str, bytes], file: str, content: str) -> str:
    digest = hashlib.sha256(repr((KUBERNETES, NAMESPACE, values_of(file))).encode())
    for path in sorted(candidate for candidate in inputs if _concerns(candidate, PLAIN[file])):
        # With path and length, so that different files cannot hash like these.
        digest.update(f"{path} {len(inputs[path])}\n".encode() + inputs[path])
    digest.update(content.encode())
    return digest.hexdigest()


def _concerns(path: str, folder: str) -> bool:
    shared = path in {"Chart.yaml", "values.yaml"} or path.endswith(".tpl") or path.startswith("settings/")
    return shared or path.startswith(f"templates/{folder}/")
