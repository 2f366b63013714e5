"""Our service, kube-scheduler and the injector as processes in the control plane's network, with TLS between them all.

They have the rights and the settings of the manifests. The API server asks the webhook over loopback, as it would ask a
Service; the certificates are mounted by ``mounts``.
"""

from __future__ import annotations

import base64
import copy
import http.client
import json
import ssl
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import httpx2 as httpx
import yaml

from deploy.local.kubeconfigs import kubeconfig, token_login
from deploy.local.kubernetes.machine.credentials import INSIDE
from deploy.neonvm.network.netns import socket_in
from protocol.runtime.tls_files import FollowingContext, client_tls, following
from tests import plain_yaml
from tests.conformance.cluster import client_of
from tests.deploy.manifests import Document, documents, one
from tests.kubernetes.injector.mounts import Mount, mounted
from tests.kubernetes.real_kubernetes import RealKubernetes, eventually
from tests.kubernetes.scheduling.programs import AGENTS, Programs, rights_and_settings

MANIFEST: Final = "deploy/kubernetes/injector.yaml"
FOR_PODS: Final = "deploy/kubernetes/with-pods/injector.yaml"
INJECTOR: Final = "autoscaling-injector"
WEBHOOK: Final = 10293
PROBES: Final = 10292
SECRETS: Final = "/api/v1/namespaces/kube-system/secrets"
NAMES: Final = ("scheduler", "kube-scheduler", "injector")
NOT_NEEDED: Final = {"Deployment", "Service", "PodDisruptionBudget"}


def injector_objects() -> list[Document]:
    """The injector's manifests, whose webhooks about pods of VMs and with a postgres are asked over loopback."""
    # Of what both manifests have, that for pods comes last and may do more.
    shipped = [copy.deepcopy(each) for each in documents(MANIFEST, FOR_PODS) if each["kind"] not in NOT_NEEDED]
    configurations = [each for each in shipped if each["kind"] == "MutatingWebhookConfiguration"]
    hooks = [hook for each in configurations for hook in each["webhooks"]]
    for hook in hooks:
        hook["clientConfig"] = {"url": f"https://127.0.0.1:{WEBHOOK}/mutate"}
    return [*(each for each in shipped if each not in configurations), {**configurations[0], "webhooks": hooks}]


@dataclass(slots=True)
class Secured(Programs):
    """The programs of ``Programs`` with certificates, and the injector."""

    injector: subprocess.Popen[bytes] | None = None

    @property
    def mounts(self) -> dict[str, Mount]:
        """Mounted objects, by the path of the object."""
        return {
            f"{SECRETS}/autoscaling-certificates-scheduler": Mount(self.folder / "scheduler-tls"),
            f"{SECRETS}/autoscaling-certificates-kube-scheduler": Mount(self.folder / "kube-scheduler-tls"),
            "/api/v1/namespaces/kube-system/configmaps/autoscaling-ca": Mount(self.folder / "agents-tls"),
        }

    def write_secured_files(self, lives: str) -> None:
        """Credentials and settings of all three. ``lives`` are settings of certificates."""
        self.write_files()
        config = plain_yaml.load((self.folder / "scheduler.yaml").read_text())
        tls = self.folder / "kube-scheduler-tls"
        files = {"certFile": "tls.crt", "keyFile": "tls.key", "caFile": "ca.crt"}
        (extender,) = config["extenders"]
        extender |= {
            "urlPrefix": "https://127.0.0.1:10298",
            "enableHTTPS": True,
            "tlsConfig": {field: str(tls / name) for field, name in files.items()},
        }
        (self.folder / "scheduler.yaml").write_text(yaml.safe_dump(config))
        token = self.cluster.kubectl("create", "token", INJECTOR, "--namespace=kube-system", "--duration=1h").strip()
        (people,) = plain_yaml.load(self.cluster.kubeconfig.read_text())["clusters"]
        authority = base64.b64decode(people["cluster"]["certificate-authority-data"])
        (self.folder / "injector.kubeconfig").write_text(kubeconfig(INSIDE, authority, INJECTOR, token_login(token)))
        settings = plain_yaml.load(one("ConfigMap", "autoscaling-injector-config")["data"]["settings.yaml"])
        settings["certificates"] |= plain_yaml.load(lives)
        (self.folder / "injector.yaml").write_text(yaml.safe_dump(settings))
        (self.folder / "injector-tls").mkdir(exist_ok=True)

    def start_injector(self) -> None:
        """Starts the injector; returns at once."""
        self.injector = self._start(
            "injector",
            *(sys.executable, "-m", "scheduler_plugin.injector"),
            f"--settings={self.folder / 'injector.yaml'}",
            f"--tls-folder={self.folder / 'injector-tls'}",
            f"--kubeconfig={self.folder / 'injector.kubeconfig'}",
            "--pods",
        )

    def service_flags(self) -> list[str]:
        """Flags with the paths of the service's certificates."""
        tls = self.folder / "scheduler-tls"
        shown = {"tls-cert": "tls.crt", "tls-key": "tls.key"}
        flags = [f"--{prefix}{flag}={tls / name}" for prefix in ("", "extender-") for flag, name in shown.items()]
        return [*flags, f"--extender-client-ca={tls / 'ca.crt'}", "--extender-client-name=autoscaling-kube-scheduler"]

    def end(self) -> None:
        """Ends all three; their logs stay."""
        if self.injector is not None:
            self.injector.terminate()
            self.injector.wait(10.0)
        super(Secured, self).end()

    def trusting(self) -> FollowingContext:
        """A TLS context with the CAs that agents trust."""
        return following(client_tls("agents", self.folder / "agents-tls" / "ca.crt"), ssl.PROTOCOL_TLS_CLIENT)

    def ask(self, method: str, port: int, path: str, body: object = None, token: str = "") -> tuple[int, Any]:
        """Like ``Programs.ask``, with TLS on the agents' port, and a new connection for each request."""
        if port != AGENTS:
            return super(Secured, self).ask(method, port, path, body, token)
        return self.ask_with_tls(method, port, path, body, token)

    def ask_with_tls(self, method: str, port: int, path: str, body: object = None, token: str = "") -> tuple[int, Any]:
        """As ``ask``, at any port, without a certificate of one's own. Raises ``OSError``."""
        connection = http.client.HTTPConnection("127.0.0.1", port)
        plain = socket_in(self.namespace)
        try:
            plain.settimeout(5.0)
            plain.connect(("127.0.0.1", port))
            connection.sock = self.trusting().wrap_socket(plain, server_hostname="127.0.0.1")
            headers = {"Authorization": f"Bearer {token}"} if token else {}
            connection.request(method, path, None if body is None else json.dumps(body), headers)
            answer = connection.getresponse()
            return answer.status, json.loads(answer.read())
        except http.client.HTTPException as error:
            raise ConnectionError(str(error)) from error
        finally:
            connection.close()
            plain.close()

    def until_injector_ready(self) -> None:
        """Returns once the webhook answers."""
        eventually(self._injects, f"the injector is ready; {self.folder / 'injector.log'}")

    def _injects(self) -> bool:
        try:
            return super(Secured, self).ask("GET", PROBES, "/readyz")[0] == 200
        except OSError:
            return False


def forget_certificates(people: httpx.Client) -> None:
    """Empties the Secrets: what follows restarts."""
    for name in ("", *(f"-{each}" for each in NAMES)):
        merge = {"Content-Type": "application/merge-patch+json"}
        answer = people.patch(f"{SECRETS}/autoscaling-certificates{name}", json={"data": None}, headers=merge)
        assert answer.is_success, answer.text


@contextmanager
def running(cluster: RealKubernetes, folder: Path, lives: str) -> Iterator[tuple[Secured, dict[str, Mount]]]:
    """All three at work with fresh certificates, and gone afterwards with the webhook."""
    cluster.apply(*rights_and_settings(), *injector_objects())
    programs = Secured(cluster, folder)
    programs.write_secured_files(lives)
    mounts = programs.mounts
    with client_of(cluster.kubeconfig) as people, mounted(people, mounts):
        forget_certificates(people)
        try:
            programs.start_injector()
            programs.until_injector_ready()
            eventually(lambda: all(each.versions for each in mounts.values()), "all certificates are there")
            programs.start_service()
            programs.start_kube_scheduler()
            programs.until_ready()
            yield programs, mounts
        finally:
            programs.end()
            cluster.kubectl("delete", "mutatingwebhookconfiguration", INJECTOR, "--ignore-not-found")
