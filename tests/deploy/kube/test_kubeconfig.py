"""Clients from kubeconfigs, and the credentials that they send."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import yaml

from deploy.kube.client import client_from_kubeconfig
from deploy.local.kubeconfigs import ADMIN, kubeconfig, token_login
from deploy.local.private_file import write_private
from protocol.kubernetes.api import ApiCall
from protocol.runtime.kubernetes.http_api import HttpApi
from protocol.units import Seconds


def write(tmp_path: Path, user: dict[str, object], server: str = "http://127.0.0.1:1") -> Path:
    config = {
        "current-context": "c",
        "contexts": [{"name": "c", "context": {"cluster": "k", "user": "u"}}],
        "clusters": [{"name": "k", "cluster": {"server": server, "insecure-skip-tls-verify": True}}],
        "users": [{"name": "u", "user": user}],
    }
    file = tmp_path / "kubeconfig"
    file.write_text(yaml.safe_dump(config))
    return file


def sent_token(file: Path) -> str | None:
    api = client_from_kubeconfig(file).api
    assert isinstance(api, HttpApi)
    token: str | None = api._request(ApiCall("GET", "/", Seconds(1.0))).headers.get("authorization")
    return token


def test_exec_plugin_runs_for_commands(tmp_path: Path) -> None:
    program = tmp_path / "plugin"
    program.write_text(f"#!/bin/sh\necho '{json.dumps({'status': {'token': 'from-plugin'}})}'\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    plugin = {"apiVersion": "client.authentication.k8s.io/v1", "command": str(program), "args": ["x"]}
    assert sent_token(write(tmp_path, {"exec": plugin})) == "Bearer from-plugin"


def test_without_credentials_none_are_sent(tmp_path: Path) -> None:
    assert sent_token(write(tmp_path, {})) is None


def test_kubeconfig_is_replaced_atomically(tmp_path: Path) -> None:
    file = tmp_path / "kubeconfig"
    write_private(file, kubeconfig("http://127.0.0.1:1", b"", ADMIN, token_login("first")))
    with file.open() as reader:
        write_private(file, kubeconfig("http://127.0.0.1:1", b"", ADMIN, token_login("second")))
        assert yaml.safe_load(reader)["users"] == [{"name": ADMIN, "user": {"token": "first"}}]
    assert (sent_token(file), stat.S_IMODE(file.stat().st_mode)) == ("Bearer second", 0o600)
    assert list(tmp_path.iterdir()) == [file]
