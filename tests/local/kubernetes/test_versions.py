"""Module sets: their files agree with the table, and versions come from ``go.mod`` alone."""

from __future__ import annotations

import pytest

from deploy.local.kubernetes.programs.build import MODULES
from deploy.local.kubernetes.programs.versions import (
    ADD_ONS,
    HELM,
    SUPPORTED,
    ModuleSet,
    go_mod_of_kubernetes,
    kubernetes_set,
    module_sets,
    required_version,
    staging_of,
)
from tests.module_sets import CERT_MANAGER, CLOUDNATIVE_PG, NEON

SETS = {
    each.name: each
    for minor in SUPPORTED
    for each in (CERT_MANAGER, CLOUDNATIVE_PG, HELM, NEON, *module_sets(minor, list(ADD_ONS)))
}
UPSTREAM = """module k8s.io/kubernetes

go 1.26.0

replace (
	k8s.io/api => ./staging/src/k8s.io/api
	k8s.io/kubelet => ./staging/src/k8s.io/kubelet
)
"""


def go_mod(modules: ModuleSet) -> str:
    return (MODULES / modules.name / "go.mod").read_text()


def test_module_folders_match_sets() -> None:
    assert {path.name for path in MODULES.iterdir()} == set(SETS)


@pytest.mark.parametrize("modules", SETS.values(), ids=lambda modules: modules.name)
def test_go_mod_pins_the_builds(modules: ModuleSet) -> None:
    """Tools are what ``go mod tidy`` does not take for unused."""
    tools = {line.strip().removeprefix("tool ") for line in go_mod(modules).splitlines()}
    assert [package for package in modules.packages if package != "." and package not in tools] == []


@pytest.mark.parametrize("minor", SUPPORTED)
def test_kubernetes_modules_are_pinned_together(minor: str) -> None:
    text = go_mod(kubernetes_set(minor))
    version = required_version(text, "k8s.io/kubernetes")
    assert version.startswith(f"v{minor}.")
    replaced = {line.split(" => ")[1].split()[1] for line in text.splitlines() if " => " in line}
    assert replaced == {version.replace("v1.", "v0.", 1)}


def test_the_version_is_linked_into_the_programs() -> None:
    flags = kubernetes_set("1.36").link_flags("require k8s.io/kubernetes v1.36.3\n").split()
    assert flags[:2] == ["-s", "-w"]
    assert "-X helm.sh/helm/v3/internal/version.version=v3.1.2" in HELM.link_flags("require helm.sh/helm/v3 v3.1.2\n")
    assert {flag for flag in flags if "component-base" in flag} == {
        "k8s.io/component-base/version.gitVersion=v1.36.3",
        "k8s.io/component-base/version.gitMajor=1",
        "k8s.io/component-base/version.gitMinor=36",
        "k8s.io/component-base/version.gitTreeState=clean",
    }


def test_set_without_version_field_links() -> None:
    assert ModuleSet("pause", "").link_flags("") == "-s -w"


def test_add_on_builds_on_request() -> None:
    usual, more = module_sets("1.36"), module_sets("1.36", ["vertical-pod-autoscaler"])
    assert [each.name for each in more if each not in usual] == ["vertical-pod-autoscaler"]
    with pytest.raises(KeyError):
        module_sets("1.36", ["keda"])


@pytest.mark.parametrize("name", ADD_ONS)
def test_an_add_on_has_a_manifest(name: str) -> None:
    assert (MODULES.with_name("add_ons") / f"{name}.yaml").is_file()


def test_a_version_that_is_not_supported_is_refused() -> None:
    with pytest.raises(KeyError):
        kubernetes_set("1.20")


def test_a_module_that_is_not_required_is_named() -> None:
    with pytest.raises(LookupError, match=r"go\.mod does not require k8s\.io/kubernetes"):
        required_version("module x\n", "k8s.io/kubernetes")


def test_staging_modules_match_release() -> None:
    written = go_mod_of_kubernetes("v1.36.3", *staging_of(UPSTREAM))
    assert required_version(written, "k8s.io/kubernetes") == "v1.36.3"
    assert "\tk8s.io/api => k8s.io/api v0.36.3\n\tk8s.io/kubelet => k8s.io/kubelet v0.36.3\n)" in written
    assert written.startswith("module autoscale/kubernetes\n\ngo 1.26.0\n")


def test_foreign_go_mod_is_refused() -> None:
    with pytest.raises(ValueError, match=r"not a go\.mod of Kubernetes"):
        staging_of("module other\n\ngo 1.26.0\n")
