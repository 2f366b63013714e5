"""The kustomize base is what the chart installs by default in ``kube-system``, as far as files show it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path

import yaml

from tests import plain_yaml
from tests.deploy.manifests import FILES, POLICIES, ROOT, WITH_CERTIFICATES, Document, documents, name_of

BASE = ROOT / "deploy"


def resources() -> set[Path]:
    base = plain_yaml.load((BASE / "kustomization.yaml").read_text())
    return {(BASE / each).resolve() for each in base["resources"]}


def moved(document: Document, namespace: str) -> Document:
    """The objects after kustomize's transformer ``namespace:``."""
    found = deepcopy(document)
    for each in (found["metadata"], *found.get("subjects", [])):
        if "namespace" in each:
            each["namespace"] = namespace
    return found


def repeated(node: yaml.Node | None) -> Iterator[str]:
    """Keys that occur twice in a mapping, which YAML forbids and most parsers accept."""
    match node:
        case yaml.MappingNode():
            keys = [key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode) and key.value != "<<"]
            yield from (f"{key} (line {node.start_mark.line + 1})" for key in set(keys) if keys.count(key) > 1)
            for _, value in node.value:
                yield from repeated(value)
        case yaml.SequenceNode():
            for each in node.value:
                yield from repeated(each)


def test_no_shipped_file_has_a_key_twice() -> None:
    """kustomize refuses such a file, and with it all of Flux's or Argo CD's application."""
    folder = ROOT / "deploy" / "kubernetes" / "chart" / "autoscale"
    more = [path for name in ("definitions", "monitoring", "settings") for path in (folder / name).rglob("*.yaml")]
    found = {}
    for path in {*(ROOT / file for file in (*FILES, *WITH_CERTIFICATES)), folder / "values.yaml", *more}:
        text = re.sub(r"\{\{.*?\}\}", "x", path.read_text())  # a setting may be a template
        if keys := [key for node in yaml.compose_all(text, Loader=yaml.CSafeLoader) for key in repeated(node)]:
            found[path.name] = keys
    assert found == {}


def test_base_has_default_fences() -> None:
    chart = plain_yaml.load((BASE / "kubernetes/chart/autoscale/values.yaml").read_text())["policies"]
    assert chart == {"enabled": True, "network": True, "permits": True}
    assert resources() == {ROOT / each for each in ("deploy/neonvm.yaml", *WITH_CERTIFICATES, *POLICIES)}
    assert {ROOT / each for each in POLICIES} == set((BASE / "kubernetes/chart/autoscale/policies").glob("*.yaml"))


def test_base_is_for_kube_system_only() -> None:
    """As the base's header and docs/install.md say; if this changes, they must change too."""
    base = [document for file in resources() for document in documents(str(file))]
    assert {each["metadata"].get("namespace") for each in base} == {None, "kube-system"}
    left = {name_of(each) for each in base if "kube-system" in str(moved(each, "other"))}
    assert left == {
        *(name_of(each) for each in base if each["kind"] == "ValidatingAdmissionPolicy"),
        "ConfigMap/kube-system/autoscaling-injector-config",
        "ConfigMap/kube-system/autoscaling-kube-scheduler-config",
        "ConfigMap/kube-system/autoscaling-scheduler-config",
        "DaemonSet/kube-system/autoscaling-agent",
        "Deployment/kube-system/autoscaling-scheduler",
        "NetworkPolicy/kube-system/autoscaling-expander",
    }
