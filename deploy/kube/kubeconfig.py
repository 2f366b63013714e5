"""Reads a kubeconfig far enough to make a client: server, CA, and one of token, token file or client certificate.

Credentials that a plugin program would fetch (``exec``) are asked of that program, as kubectl does.
"""

from __future__ import annotations

import base64
import json
import ssl
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import httpx
import yaml

from deploy.kube.client import ApiClient
from protocol.kubernetes.objects import Json, child, flag, items, text

_TIMEOUT: Final = httpx.Timeout(15.0, connect=5.0)


class KubeconfigError(Exception):
    """The kubeconfig cannot be used; the message says which part and why."""


def client_from_kubeconfig(path: Path, context: str = "") -> ApiClient:
    """A client for ``context`` (the current one where empty) of the file at ``path``. Raises ``KubeconfigError``."""
    try:
        loaded: object = yaml.safe_load(path.read_text())
    except (OSError, yaml.YAMLError) as error:
        raise KubeconfigError(f"cannot read kubeconfig {path}: {error}") from error
    config = dict(loaded) if isinstance(loaded, Mapping) else {}
    chosen = _named(config, "contexts", "context", context or text(config, "current-context"), path)
    cluster = _named(config, "clusters", "cluster", text(chosen, "cluster"), path)
    user = _named(config, "users", "user", text(chosen, "user"), path) if text(chosen, "user") else {}
    credential = {**user, **_from_plugin(user)}
    http = httpx.AsyncClient(
        base_url=text(cluster, "server"),
        headers=_bearer(credential, path),
        verify=_tls(cluster, credential, path),
        timeout=_TIMEOUT,
        limits=httpx.Limits(max_connections=64, max_keepalive_connections=32),
        trust_env=False,
    )
    return ApiClient(http)


def _named(config: Json, plural: str, singular: str, name: str, path: Path) -> Json:
    for entry in items(config, plural):
        if text(entry, "name") == name:
            return child(entry, singular)
    raise KubeconfigError(f"kubeconfig {path} has no {singular} named {name!r}")


def _bearer(user: Json, path: Path) -> dict[str, str]:
    token = text(user, "token")
    if not token and (file := text(user, "tokenFile")):
        token = (path.parent / file).read_text().strip()
    return {"Authorization": f"Bearer {token}"} if token else {}


def _tls(cluster: Json, user: Json, path: Path) -> ssl.SSLContext | bool:
    if not text(cluster, "server").startswith("https"):
        return False
    if flag(cluster, "insecure-skip-tls-verify"):
        context = ssl._create_unverified_context()  # noqa: S323 - the kubeconfig asks for exactly this
    else:
        context = ssl.create_default_context(cadata=_pem(cluster, "certificate-authority", path) or None)
    certificate, key = _pem(user, "client-certificate", path), _pem(user, "client-key", path)
    if certificate and key:
        with tempfile.NamedTemporaryFile("w", suffix=".pem") as both:
            both.write(certificate + "\n" + key)
            both.flush()
            context.load_cert_chain(both.name)
    return context


def _pem(source: Json, field: str, path: Path) -> str:
    if inline := text(source, f"{field}-data"):
        return base64.b64decode(inline).decode()
    if file := text(source, field):
        return (path.parent / file).read_text()
    return ""


def _from_plugin(user: Json) -> Json:
    plugin = child(user, "exec")
    if not plugin:
        return {}
    arguments = plugin.get("args")
    command = [text(plugin, "command"), *(str(each) for each in (arguments if isinstance(arguments, list) else []))]
    try:
        answer = subprocess.run(command, capture_output=True, check=True, timeout=60).stdout
        status = child(json.loads(answer), "status")
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        raise KubeconfigError(f"the credential program {command[0]!r} failed: {error}") from error
    return {
        "token": text(status, "token"),
        "client-certificate-data": _encoded(text(status, "clientCertificateData")),
        "client-key-data": _encoded(text(status, "clientKeyData")),
    }


def _encoded(pem: str) -> str:
    return base64.b64encode(pem.encode()).decode()
