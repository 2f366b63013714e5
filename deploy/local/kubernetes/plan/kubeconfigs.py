"""Kubeconfigs, and the users of a cluster's programs and people (pure)."""

from __future__ import annotations

import base64
from dataclasses import dataclass
from typing import Final

import yaml

from deploy.local.kubernetes.plan.cluster_plan import NodePlan
from protocol.kubernetes.objects import Json

# Members of this group pass every check, before RBAC is asked.
MASTERS: Final = "system:masters"
NODES: Final = "system:nodes"
ADMIN: Final = "admin"


@dataclass(frozen=True, slots=True)
class Certified:
    """A user who shows a certificate. Both are PEM."""

    certificate: bytes
    key: bytes

    def fields(self) -> Json:
        """The user's entry in a kubeconfig."""
        return {"client-certificate-data": _base64(self.certificate), "client-key-data": _base64(self.key)}


@dataclass(frozen=True, slots=True)
class Tokened:
    """A user who shows a token."""

    token: str

    def fields(self) -> Json:
        """The user's entry in a kubeconfig."""
        return {"token": self.token}


def kubeconfig(server: str, authority: bytes, user: str, login: Certified | Tokened) -> str:
    """Kubeconfig of ``user`` for the API server at the URL ``server``, whose ``authority`` (PEM) is trusted."""
    cluster = {"server": server, "certificate-authority-data": _base64(authority)}
    return yaml.safe_dump(
        {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "local", "cluster": cluster}],
            "users": [{"name": user, "user": login.fields()}],
            "contexts": [{"name": "local", "context": {"cluster": "local", "user": user}}],
            "current-context": "local",
        },
        sort_keys=False,
    )


def node_user(node: NodePlan) -> str:
    """The user name of a node's kubelet."""
    # The Node authorizer requires this prefix.
    return f"system:node:{node.name}"


def token_list(token: str) -> str:
    """The API server's list of tokens: people's, who may do everything."""
    # The columns of --token-auth-file: token, user, uid, groups.
    return f"{token},{ADMIN},{ADMIN},{MASTERS}\n"


def _base64(content: bytes) -> str:
    return base64.b64encode(content).decode()
