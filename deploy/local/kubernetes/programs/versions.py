"""Module sets: the programs of a cluster, and the Go modules that they are built from (pure).

- Each set is a folder under ``modules``. Its ``go.mod`` has the versions, its ``go.sum`` the checksums.
- ``python -m scripts.pin_kubernetes`` writes the folder of a minor version of Kubernetes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

SUPPORTED: Final = ("1.36", "1.35")
"""Supported minor versions of Kubernetes, the default first."""

KUBERNETES: Final = "k8s.io/kubernetes"
_KUBERNETES_PROGRAMS: Final = (
    "kube-apiserver",
    "kube-controller-manager",
    "kube-proxy",
    "kube-scheduler",
    "kubectl",
    "kubelet",
)
_VERSION_PACKAGES: Final = ("k8s.io/component-base/version", "k8s.io/client-go/pkg/version")


@dataclass(frozen=True, slots=True)
class ModuleSet:
    """One folder under ``modules``, and the ``packages`` to build.

    ``renamed`` maps Go's name of a program, or its package if the name is ambiguous, to our name. ``stamps`` are
    variables that the linker sets to the version of ``module``. ``files`` of the module are copied to the programs.
    """

    name: str
    module: str
    packages: tuple[str, ...] = (".",)
    renamed: Mapping[str, str] = field(default_factory=dict)
    stamps: tuple[str, ...] = ()
    files: tuple[str, ...] = ()

    @property
    def builds(self) -> Iterator[tuple[tuple[str, ...], str]]:
        """The packages of each ``go build``, and the name of the program; empty: the names that Go chooses."""
        unnamed = tuple(package for package in self.packages if package not in self.renamed)
        if unnamed:
            yield unnamed, ""
        # `go build -o NAME` accepts one package only.
        for package in self.packages:
            if package in self.renamed:
                yield (package,), self.renamed[package]

    def link_flags(self, go_mod: str) -> str:
        """Linker flags: no debugging symbols, and the version that ``go_mod`` requires."""
        if not self.stamps:
            return "-s -w"
        values = _stamp_values(required_version(go_mod, self.module))
        stamped = [f"-X {stamp}={values[stamp.rpartition('.')[2]]}" for stamp in self.stamps]
        return " ".join(("-s -w", *stamped))


def kubernetes_set(minor: str) -> ModuleSet:
    """Kubernetes' own programs. Raises ``KeyError`` if ``minor`` is not supported."""
    if minor not in SUPPORTED:
        raise KeyError(minor)
    stamps = [
        f"{package}.{variable}"
        for package in _VERSION_PACKAGES
        for variable in ("gitVersion", "gitMajor", "gitMinor", "gitTreeState")
    ]
    packages = tuple(f"{KUBERNETES}/cmd/{program}" for program in _KUBERNETES_PROGRAMS)
    return ModuleSet(f"kubernetes-{minor}", KUBERNETES, packages, stamps=tuple(stamps))


_CONTAINERD: Final = "github.com/containerd/containerd/v2"
CONTAINERD: Final = ModuleSet(
    "containerd",
    _CONTAINERD,
    tuple(f"{_CONTAINERD}/cmd/{program}" for program in ("containerd", "containerd-shim-runc-v2", "ctr")),
    stamps=(f"{_CONTAINERD}/version.Version",),
)
ETCD: Final = ModuleSet(
    "etcd",
    "go.etcd.io/etcd/server/v3",
    ("go.etcd.io/etcd/etcdctl/v3", "go.etcd.io/etcd/etcdutl/v3", "go.etcd.io/etcd/server/v3"),
    # Go names the program after the last path element without the version: `server`.
    {"server": "etcd"},
)
COREDNS: Final = ModuleSet("coredns", "github.com/coredns/coredns")
METRICS_SERVER: Final = ModuleSet(
    "metrics-server",
    "sigs.k8s.io/metrics-server",
    ("sigs.k8s.io/metrics-server/cmd/metrics-server",),
    stamps=("k8s.io/client-go/pkg/version.gitVersion",),
)
PAUSE: Final = ModuleSet("pause", "")

_VERTICAL_POD_AUTOSCALER: Final = "k8s.io/autoscaler/vertical-pod-autoscaler"
VERTICAL_POD_AUTOSCALER: Final = ModuleSet(
    "vertical-pod-autoscaler",
    _VERTICAL_POD_AUTOSCALER,
    (f"{_VERTICAL_POD_AUTOSCALER}/pkg/recommender",),
    {"recommender": "vpa-recommender"},
    files=("deploy/vpa-v1-crd-gen.yaml",),
)
_HELM: Final = "helm.sh/helm/v3"
HELM: Final = ModuleSet("helm", _HELM, (f"{_HELM}/cmd/helm",), stamps=(f"{_HELM}/internal/version.version",))
"""Helm, for users and tests; not part of a cluster."""

ADD_ONS: Final = {VERTICAL_POD_AUTOSCALER.name: VERTICAL_POD_AUTOSCALER}
"""Optional module sets by name."""


def module_sets(minor: str, add_ons: Sequence[str] = ()) -> tuple[ModuleSet, ...]:
    """The module sets of a cluster, smallest first, so that a broken toolchain fails early.

    Raises ``KeyError`` for an unknown minor version or add-on.
    """
    chosen = (ADD_ONS[name] for name in add_ons)
    return (PAUSE, ETCD, CONTAINERD, METRICS_SERVER, COREDNS, *chosen, kubernetes_set(minor))


def required_version(go_mod: str, module: str) -> str:
    """The version of ``module`` in the text ``go_mod``. Raises ``LookupError``."""
    match = re.search(rf"^(?:require)?\s*{re.escape(module)} (v\S+)", go_mod, re.MULTILINE)
    if match is None:
        raise LookupError(f"go.mod does not require {module}")
    return match[1]


def go_mod_of_kubernetes(version: str, go: str, staging: tuple[str, ...]) -> str:
    """The initial ``go.mod`` for ``go mod tidy``.

    ``staging`` are the modules in Kubernetes' own repository. They are replaced by the published modules of the
    release, such as v0.36.3 for v1.36.3.
    """
    tools = "\n".join(f"\t{KUBERNETES}/cmd/{program}" for program in _KUBERNETES_PROGRAMS)
    published = f"v0.{version.removeprefix('v1.')}"
    # Needed because Go ignores the `replace` directives of dependencies.
    replaced = "\n".join(f"\t{module} => {module} {published}" for module in staging)
    return (
        f"module autoscale/kubernetes\n\ngo {go}\n\nrequire {KUBERNETES} {version}\n\n"
        f"tool (\n{tools}\n)\n\nreplace (\n{replaced}\n)\n"
    )


def staging_of(go_mod: str) -> tuple[str, tuple[str, ...]]:
    """The Go version and the staging modules in Kubernetes' ``go.mod``. Raises ``ValueError``."""
    go = re.search(r"^go (\S+)$", go_mod, re.MULTILINE)
    staging = re.findall(r"^\s*(k8s\.io/\S+) => \./staging/", go_mod, re.MULTILINE)
    if go is None or not staging:
        raise ValueError("not a go.mod of Kubernetes")
    return go[1], tuple(staging)


def _stamp_values(version: str) -> Mapping[str, str]:
    major, minor, _ = version.removeprefix("v").split(".", 2)
    return {
        "gitVersion": version,
        "gitMajor": major,
        "gitMinor": minor,
        "gitTreeState": "clean",
        "Version": version,
        "version": version,
    }
