"""Which APIs are asked, and with which clients."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.conformance.cluster import Cluster, client_of, done

_KUBECTL = shutil.which("kubectl")
_REAL = os.environ.get("AUTOSCALE_TEST_KUBECONFIG")
_CONTROLLERS = os.environ.get("AUTOSCALE_TEST_CONTROLLERS") == "1"
_NEED_CONTROLLERS = "test_controllers"

collect_ignore = [] if _KUBECTL else ["test_kubectl.py"]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if not _KUBECTL:
        terminalreporter.write_line("kubectl is not on PATH: tests/conformance/test_kubectl.py was not collected")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "kubeconfig" not in metafunc.fixturenames:
        return
    variants = [pytest.param("", id="ours")]
    if _REAL and (_CONTROLLERS or _NEED_CONTROLLERS not in metafunc.module.__name__):
        variants.append(pytest.param(_REAL, id="real", marks=pytest.mark.cluster))
    metafunc.parametrize("kubeconfig", variants, indirect=True, scope="session")


@pytest.fixture(scope="session")
def our_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The kubeconfig of our own server, run as its own process the way people run it."""
    directory = tmp_path_factory.mktemp("apiserver")
    kubeconfig = directory / "kubeconfig"
    command = [sys.executable, "-m", "deploy.local.apiserver", "--data-dir", str(directory)]
    command += ["--listen-tls", "127.0.0.1:0", "--kubeconfig-out", str(kubeconfig)]
    command += ["--admin-token-file", str(directory / "token")]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        started = json.loads(process.stderr.readline())
        assert (started["msg"], started["url"][:18]) == ("serving", "https://127.0.0.1:")
        yield kubeconfig
        process.terminate()
        assert process.wait(10) == 0


@pytest.fixture(scope="session")
def kubeconfig(request: pytest.FixtureRequest) -> Path:
    """The kubeconfig of the API under test."""
    if request.param:
        return Path(request.param)
    path: Path = request.getfixturevalue("our_server")
    return path


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
