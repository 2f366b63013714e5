"""Kubeconfigs and user names of a local cluster (pure)."""

from __future__ import annotations

import base64
from typing import Final

import yaml

from protocol.kubernetes.objects import Json

# Members of this group bypass authorization, RBAC included.
MASTERS: Final = "system:masters"
NODES: Final = "system:nodes"
ADMIN: Final = "admin"


def certificate_login(certificate: bytes, key: bytes) -> Json:
    """Kubeconfig credentials: a client certificate and its key, PEM."""
    return {"client-certificate-data": _base64(certificate), "client-key-data": _base64(key)}


def token_login(token: str) -> Json:
    """Kubeconfig credentials: a bearer token."""
    return {"token": token}


def kubeconfig(server: str, authority: bytes, user: str, login: Json) -> str:
    """Kubeconfig of ``user`` for the API server at URL ``server``; ``authority``: CA certificate, empty for HTTP."""
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


def _base64(content: bytes) -> str:
    return base64.b64encode(content).decode()
