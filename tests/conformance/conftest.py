"""The APIs under test, and their clients."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import httpx2 as httpx
import pytest

from deploy.owned_process import owned
from tests.conformance.cluster import Cluster, client_of, done

if TYPE_CHECKING:
    from tests.kubernetes.real_kubernetes import RealKubernetes

_KUBECTL = shutil.which("kubectl")
_NAMED = os.environ.get("AUTOSCALE_TEST_KUBECONFIG")
_CONTROLLERS = os.environ.get("AUTOSCALE_TEST_CONTROLLERS") == "1"
_NEED_CONTROLLERS = "test_controllers"
_NEED_KUBECTL = "test_kubectl"
_OURS, _REAL = "ours", "real"


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Without a kubectl on PATH, only a real Kubernetes has one."""
    needless = collection_path.stem == _NEED_KUBECTL and not _KUBECTL and not _asks_the_real_one(config)
    return True if needless else None


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if not _KUBECTL:
        terminalreporter.write_line("kubectl is not on PATH: tests/conformance/test_kubectl.py did not ask our server")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "kubeconfig" not in metafunc.fixturenames:
        return
    module = metafunc.module.__name__
    variants = []
    if _KUBECTL or _NEED_KUBECTL not in module:
        variants.append(pytest.param(_OURS, id=_OURS))
    if _asks_the_real_one(metafunc.config):
        variants.append(pytest.param(_REAL, id=_REAL, marks=pytest.mark.kubernetes))
    if _NAMED and (_CONTROLLERS or _NEED_CONTROLLERS not in module):
        variants.append(pytest.param(_NAMED, id="named", marks=pytest.mark.cluster))
    metafunc.parametrize("kubeconfig", variants, indirect=True, scope="session")


def _asks_the_real_one(config: pytest.Config) -> bool:
    """A real Kubernetes is brought up on request alone: a run that names no marker has none of its tests."""
    markers = str(config.getoption("markexpr"))
    return "kubernetes" in markers and "not kubernetes" not in markers


@pytest.fixture(scope="session")
def our_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The kubeconfig of our own server, run as its own process the way people run it."""
    directory = tmp_path_factory.mktemp("apiserver")
    kubeconfig = directory / "kubeconfig"
    command = [sys.executable, "-m", "deploy.local.apiserver", "--data-dir", str(directory)]
    command += ["--listen-tls", "127.0.0.1:0", "--kubeconfig-out", str(kubeconfig)]
    command += ["--admin-token-file", str(directory / "token")]
    # A run that is interrupted kills its workers, and they cannot end the server.
    with subprocess.Popen(owned(command), stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        started = json.loads(process.stderr.readline())
        assert (started["msg"], started["url"][:18]) == ("serving", "https://127.0.0.1:")
        yield kubeconfig
        process.terminate()
        assert process.wait(10) == 0


@pytest.fixture(scope="session")
def kubeconfig(request: pytest.FixtureRequest) -> Path:
    """The kubeconfig of the API under test."""
    if request.param == _REAL:
        cluster: RealKubernetes = request.getfixturevalue("real_kubernetes")
        return cluster.kubeconfig
    if request.param == _OURS:
        path: Path = request.getfixturevalue("our_server")
        return path
    return Path(request.param)


@pytest.fixture
def kubectl_program(request: pytest.FixtureRequest) -> str:
    """A real Kubernetes has a kubectl of its version; the others are asked with the one on PATH."""
    if request.node.callspec.params["kubeconfig"] == _REAL:
        from tests.kubernetes.real_kubernetes import kubectl_program as built  # noqa: PLC0415 - nothing else here needs it

        return str(built())
    assert _KUBECTL, "no such test is collected without it"
    return _KUBECTL


@pytest.fixture(scope="session")
def http(kubeconfig: Path) -> Iterator[httpx.Client]:
    """A client of the API under test."""
    with client_of(kubeconfig) as client:
        yield client


@pytest.fixture
def cluster(http: httpx.Client, kubeconfig: Path) -> Iterator[Cluster]:
    """The API under test, with a new namespace."""
    made = done(http.post("/api/v1/namespaces", json={"metadata": {"generateName": "conformance-"}}))
    name = made["metadata"]["name"]
    yield Cluster(http, kubeconfig, name)
    http.delete(f"/api/v1/namespaces/{name}")
