"""Other projects' programs for tests; their modules are pinned next to those of the local cluster."""

from __future__ import annotations

from typing import Final

from deploy.local.kubernetes.programs.build import MODULES
from deploy.local.kubernetes.programs.versions import ModuleSet, required_version

_NEON: Final = "github.com/neondatabase/autoscaling"
_NEON_KINDS: Final = ("ippools", "virtualmachinemigrations", "virtualmachines")
_NEON_PROGRAMS: Final = ("autoscale-scheduler", "autoscaler-agent", "neonvm-controller")
NEON: Final = ModuleSet(
    "neon-autoscaling",
    _NEON,
    tuple(f"{_NEON}/{program}/cmd" for program in _NEON_PROGRAMS),
    {f"{_NEON}/{program}/cmd": program for program in _NEON_PROGRAMS},
    files=(
        *(f"neonvm/config/crd/bases/vm.neon.tech_{kind}.yaml" for kind in _NEON_KINDS),
        "neonvm/config/webhook/manifests.yaml",
        "neonvm-controller/role.yaml",
    ),
)
"""The programs with which ours are tested: NeonVM's controller, and the agent and the scheduler made for it."""

_CERT_MANAGER: Final = "github.com/cert-manager/cert-manager"
_CERT_MANAGER_KINDS: Final = ("certificaterequests", "certificates", "clusterissuers", "issuers")
CERT_MANAGER: Final = ModuleSet(
    "cert-manager",
    _CERT_MANAGER,
    files=tuple(f"deploy/crds/cert-manager.io_{kind}.yaml" for kind in _CERT_MANAGER_KINDS),
)
"""Only the controllers that the chart's authority needs: tests install the chart with it."""

_CLOUDNATIVE_PG: Final = "github.com/cloudnative-pg/cloudnative-pg"
_CLOUDNATIVE_PG_NAME: Final = "cloudnative-pg"
CLOUDNATIVE_PG_VERSION: Final = required_version(
    (MODULES / _CLOUDNATIVE_PG_NAME / "go.mod").read_text(), _CLOUDNATIVE_PG
).removeprefix("v")
CLOUDNATIVE_PG: Final = ModuleSet(
    _CLOUDNATIVE_PG_NAME,
    _CLOUDNATIVE_PG,
    (f"{_CLOUDNATIVE_PG}/cmd/manager",),
    # Its module has the manifest of each of its releases.
    files=(f"releases/cnpg-{CLOUDNATIVE_PG_VERSION}.yaml",),
)
"""The operator whose pods of postgres ours resize."""
