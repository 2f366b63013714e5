"""Our service and a kube-scheduler that asks it, as processes in the control plane's network.

They have what the pod of the manifest has: its command line, its two ConfigMaps, its ServiceAccount and its rights.
"""

from __future__ import annotations

import base64
import http.client
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml

from deploy.local.kubeconfigs import kubeconfig, token_login
from deploy.local.kubernetes.machine.credentials import INSIDE
from deploy.local.process import LocalProgram
from deploy.neonvm.network.namespaces import NamespaceNetwork
from deploy.neonvm.network.netns import socket_in
from tests import plain_yaml
from tests.deploy.manifests import ROOT, Document, container, documents, one
from tests.kubernetes.real_kubernetes import PATIENCE, RealKubernetes, eventually, kubectl_program

MANIFEST: Final = "deploy/scheduler-deploy.yaml"
POLICIES: Final = tuple(f"deploy/kubernetes/policies/{name}.yaml" for name in ("agents", "leases", "scheduler"))
ACCOUNT: Final = "autoscaling-scheduler"
AGENTS: Final = 10299
METRICS: Final = 10297
LOOPBACK: Final = "127.0.0.1"

_ANSWER: Final = 5.0
"""Seconds: agents wait no longer either."""


def rights_and_settings() -> list[Document]:
    """All of the manifest but the pod itself and what only leads to it, and what fences its writes."""
    beside = {"Deployment", "Service", "PodDisruptionBudget"}
    return [each for each in documents(MANIFEST, *POLICIES) if each["kind"] not in beside]


@dataclass(slots=True)
class Programs:
    """Both programs, each of which can be killed and started again."""

    cluster: RealKubernetes
    folder: Path
    service: subprocess.Popen[bytes] | None = None
    kube_scheduler: subprocess.Popen[bytes] | None = None

    @property
    def namespace(self) -> str:
        """The network namespace of the control plane."""
        return f"autoscale.{self.cluster.name}.switch"

    def write_files(self) -> None:
        """Credentials and settings."""
        self.folder.mkdir(exist_ok=True)
        token = self.cluster.kubectl("create", "token", ACCOUNT, "--namespace=kube-system", "--duration=1h").strip()
        (people,) = plain_yaml.load(self.cluster.kubeconfig.read_text())["clusters"]
        authority = base64.b64decode(people["cluster"]["certificate-authority-data"])
        (self.folder / "kubeconfig").write_text(kubeconfig(INSIDE, authority, ACCOUNT, token_login(token)))
        self.set_overrides()
        theirs = plain_yaml.load(one("ConfigMap", "autoscaling-kube-scheduler-config")["data"]["scheduler.yaml"])
        theirs["clientConnection"] = {"kubeconfig": str(self.folder / "kubeconfig")}
        (self.folder / "scheduler.yaml").write_text(yaml.safe_dump(theirs))

    def set_overrides(self, *overrides: Document) -> None:
        """Writes the settings, with these overrides for single nodes. The service takes them in within seconds."""
        settings = plain_yaml.load(one("ConfigMap", "autoscaling-scheduler-config")["data"]["config.yaml"])
        settings["nodeOverrides"] = list(overrides)
        settings |= self.more_settings()
        (self.folder / "config.yaml").write_text(yaml.safe_dump(settings))

    def more_settings(self) -> Document:
        """Settings in addition to those of the manifest."""
        return {}

    def start_service(self) -> None:
        """Starts our service; returns at once."""
        flags = [f"--config={self.folder / 'config.yaml'}", f"--kubeconfig={self.folder / 'kubeconfig'}"]
        flags += [each for each in container("service")["args"] if not each.startswith("--config=")]
        flags += self.service_flags()
        self.service = self._start("service", sys.executable, "-m", "scheduler_plugin", *flags)

    def service_flags(self) -> list[str]:
        """Flags in addition to those of the manifest."""
        return []

    def kill_service(self) -> None:
        """``kill -9``; returns when it is gone."""
        _kill(self.service)

    def halt_service(self) -> None:
        """It does nothing more, as on a machine that hangs, until ``resume_service``; its connections stay open."""
        assert self.service is not None
        self.service.send_signal(signal.SIGSTOP)

    def resume_service(self) -> None:
        """Resume the service, which then receives all missed events."""
        assert self.service is not None
        self.service.send_signal(signal.SIGCONT)

    def kill_kube_scheduler(self) -> None:
        """``kill -9``, too."""
        _kill(self.kube_scheduler)

    def stop_service(self) -> None:
        """SIGTERM; returns when it is gone."""
        _end(self.service)

    def start_kube_scheduler(self) -> None:
        """Starts the kube-scheduler of our profile; returns at once."""
        logins = [f"--{what}-kubeconfig={self.folder / 'kubeconfig'}" for what in ("authentication", "authorization")]
        program = str(kubectl_program().parent / "kube-scheduler")
        flags = [f"--config={self.folder / 'scheduler.yaml'}", "--secure-port=0", "--v=2", *logins]
        self.kube_scheduler = self._start("kube-scheduler", program, *flags)

    def _start(self, name: str, *command: str) -> subprocess.Popen[bytes]:
        log = self.folder / f"{name}.log"
        argv = LocalProgram(command, log, NamespaceNetwork(self.cluster.name, "tests").control_enter()).argv
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        with log.open("ab") as output:
            return subprocess.Popen(argv, stdout=output, stderr=output, env=environment, start_new_session=True)

    def until_ready(self) -> None:
        """Returns once the service has read the cluster."""
        eventually(self._is_ready, f"the service is ready; {self.folder / 'service.log'}", PATIENCE)

    def _is_ready(self) -> bool:
        assert self.service is not None
        assert self.service.poll() is None, (self.folder / "service.log").read_text()[-2000:]
        try:
            return self.get("/readyz")[0] == 200
        except OSError:
            return False

    def mend(self) -> None:
        """Brings the service back where a story has failed in the middle of harming it."""
        if self.service is None or self.service.poll() is not None:
            self.start_service()
        self.resume_service()
        self.until_ready()

    def end(self) -> None:
        """Ends both; their logs stay."""
        _end(self.kube_scheduler)
        _end(self.service)

    def get(self, path: str) -> tuple[int, Any]:
        """Response of the metrics and views port: decoded JSON, or text. Raises ``OSError``."""
        return self.ask("GET", METRICS, path)

    def ask(self, method: str, port: int, path: str, body: object = None, token: str = "") -> tuple[int, Any]:
        """Status and content of one answer. Raises ``OSError`` if there is none."""
        return asked(self.namespace, LOOPBACK, method, port, path, body=body, token=token)


def asked(
    namespace: str, host: str, method: str, port: int, path: str, *, body: object = None, token: str = ""
) -> tuple[int, Any]:
    """Status and content of one answer of who listens in a network namespace: JSON as such, anything else as text.

    Raises ``OSError`` if there is none.
    """
    connection = http.client.HTTPConnection(host, port)
    connection.sock = socket_in(namespace)
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    try:
        connection.sock.settimeout(_ANSWER)
        connection.sock.connect((host, port))
        connection.request(method, path, None if body is None else json.dumps(body), headers)
        answer = connection.getresponse()
        content = answer.read()
    except http.client.HTTPException as error:
        raise ConnectionError(str(error)) from error
    finally:
        connection.close()
    is_json = (answer.getheader("Content-Type") or "").startswith("application/json")
    return answer.status, json.loads(content) if is_json else content.decode()


def _kill(process: subprocess.Popen[bytes] | None) -> None:
    if process is not None:
        process.send_signal(signal.SIGKILL)
        process.wait()


def _end(process: subprocess.Popen[bytes] | None) -> None:
    if process is None:
        return
    process.terminate()
    try:
        process.wait(5.0)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


@contextmanager
def running(cluster: RealKubernetes, folder: Path, kind: type[Programs] = Programs) -> Iterator[Programs]:
    """Both programs at work, and gone afterwards."""
    cluster.apply(*rights_and_settings())
    programs = kind(cluster, folder)
    programs.write_files()
    try:
        programs.start_service()
        programs.start_kube_scheduler()
        programs.until_ready()
        yield programs
    finally:
        programs.end()
