"""Kubeconfigs, and the users of a cluster's programs and people (pure)."""

from __future__ import annotations

import base64
from typing import Final

import yaml

from protocol.kubernetes.objects import Json

# Members of this group pass every check, before RBAC is asked.
MASTERS: Final = "system:masters"
NODES: Final = "system:nodes"
ADMIN: Final = "admin"


def certified(certificate: bytes, key: bytes) -> Json:
    """The login of a user who shows a certificate. Both are PEM."""
    return {"client-certificate-data": _base64(certificate), "client-key-data": _base64(key)}


def tokened(token: str) -> Json:
    """The login of a user who shows a token."""
    return {"token": token}


def kubeconfig(server: str, authority: bytes, user: str, login: Json) -> str:
    """Kubeconfig of ``user`` for the API server at the URL ``server``, whose ``authority`` (PEM, empty for plain HTTP)
    is trusted.
    """
    trust = {"certificate-authority-data": _base64(authority)} if authority else {}
    return yaml.safe_dump(
        {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "local", "cluster": {"server": server, **trust}}],
            "users": [{"name": user, "user": login}],
            "contexts": [{"name": "local", "context": {"cluster": "local", "user": user}}],
            "current-context": "local",
        },
        sort_keys=False,
    )


def node_user(node: str) -> str:
    """The user name of a node's kubelet."""
    # The Node authorizer requires this prefix.
    return f"system:node:{node}"


def token_list(token: str) -> str:
    """The API server's list of tokens: people's, who may do everything."""
    # The columns of --token-auth-file: token, user, uid, groups.
    return f"{token},{ADMIN},{ADMIN},{MASTERS}\n"


def _base64(content: bytes) -> str:
    return base64.b64encode(content).decode()
