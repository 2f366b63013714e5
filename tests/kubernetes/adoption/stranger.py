"""An attacker on a real cluster: a pod next to a VM's, and a tenant who may edit the VMs of a namespace."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Final

from tests.kubernetes.adoption.steps import NAME
from tests.kubernetes.real_kubernetes import RealKubernetes, busybox_pod

_POD: Final = "stranger"
_TENANT: Final = "tenant"
_ROLE: Final[list[dict[str, Any]]] = [
    {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "Role",
        "metadata": {"name": _TENANT},
        "rules": [
            {"apiGroups": ["vm.neon.tech"], "resources": ["*"], "verbs": ["*"]},
            {"apiGroups": [""], "resources": ["pods"], "verbs": ["*"]},
        ],
    },
    {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "RoleBinding",
        "metadata": {"name": _TENANT},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": _TENANT},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": _TENANT}],
    },
]


@dataclass(frozen=True, slots=True)
class Stranger:
    """Runs in ``cluster``, in the namespace ``default``, where the VM of ``vm-deploy.yaml`` is."""

    cluster: RealKubernetes

    def start(self) -> None:
        """Returns once its pod runs and the tenant has his rights."""
        self.cluster.apply(busybox_pod(_POD, "sleep", "1200"), *_ROLE)
        self.cluster.wait("condition=Ready", f"pod/{_POD}")

    def end(self) -> None:
        """Delete its objects."""
        self.cluster.kubectl("delete", "--ignore-not-found", f"pod/{_POD}", f"role/{_TENANT}", f"rolebinding/{_TENANT}")

    def reads(self, url: str) -> bool:
        """Return True if its pod gets the expected response from ``url``."""
        fetch = ("wget", "-q", "-O", "-", "--no-check-certificate", url)
        return self.cluster.try_kubectl("exec", _POD, "--", *fetch).returncode == 0

    def edits(self, patch: object) -> bool:
        """Return True if the tenant may change the VM that way."""
        typed = f"--patch={json.dumps(patch)}"
        return self._as_tenant("patch", "neonvm", NAME, "--type=merge", typed)

    def makes(self, made: object) -> bool:
        """Return True if the tenant may create the object; nothing is stored."""
        return self._as_tenant("create", "--dry-run=server", "--filename=-", typed=json.dumps(made))

    def _as_tenant(self, *arguments: str, typed: str = "") -> bool:
        return self.cluster.try_kubectl(*arguments, f"--as={_TENANT}", typed=typed).returncode == 0
