"""Two replicas of our service and of kube-scheduler, as the chart runs them, and what leads clients to the leader."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Final

import yaml

from deploy.neonvm.network.commands import ip_in
from protocol.kubernetes.resources import ENDPOINT_SLICES
from scripts.manifests.__main__ import helm, template
from scripts.manifests.rendering import VALUES
from tests import plain_yaml
from tests.deploy.manifests import Document
from tests.kubernetes.real_kubernetes import RealKubernetes, eventually, kubectl_program
from tests.kubernetes.scheduling.programs import AGENTS, METRICS, Programs, asked, rights_and_settings

NAME: Final = "autoscaling-scheduler"
NAMESPACE: Final = "kube-system"
EXTENDER: Final = 10298
ADDRESSES: Final = ("10.199.0.2", "10.199.0.3")
"""An API server takes no address of loopback into a slice."""

CALLS: Final = "autoscale_scheduler_extender_calls_total"


@cache
def _rendered() -> list[Document]:
    """All objects of the chart with two schedulers."""
    values = {**VALUES, "certificates": {"enabled": True}, "expander": {"enabled": False}, "scheduler": {"replicas": 2}}
    documents = plain_yaml.load_all(template(helm(), values))
    return [each for each in documents if each]


def _of_the_chart(*kinds: str, name: str = NAME) -> list[Document]:
    return [each for each in _rendered() if each["kind"] in kinds and each["metadata"]["name"].startswith(name)]


@dataclass(slots=True)
class ReplicatedPrograms(Programs):
    """``services`` and ``kube_schedulers`` by the address that the service listens on."""

    services: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    kube_schedulers: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    forwarder: subprocess.Popen[bytes] | None = None

    def write_kube_schedulers_settings(self) -> None:
        """The chart's, without TLS: what stands for the Service is on loopback."""
        (found,) = _of_the_chart("ConfigMap", name="autoscaling-kube-scheduler-config")
        theirs = plain_yaml.load(found["data"]["scheduler.yaml"])
        theirs["clientConnection"]["kubeconfig"] = str(self.folder / "kubeconfig")
        (extender,) = theirs["extenders"]
        extender["urlPrefix"] = f"http://127.0.0.1:{EXTENDER}"
        del extender["enableHTTPS"], extender["tlsConfig"]
        (self.folder / "scheduler.yaml").write_text(yaml.safe_dump(theirs))

    def start_replica(self, address: str) -> None:
        """Starts those of our service and its kube-scheduler that do not run."""
        if _has_ended(self.services.get(address)):
            self.services[address] = self._start(f"service-{address}", *self._service(address))
        if _has_ended(self.kube_schedulers.get(address)):
            program, kubeconfig = str(kubectl_program().parent / "kube-scheduler"), self.folder / "kubeconfig"
            logins = [f"--{what}-kubeconfig={kubeconfig}" for what in ("authentication", "authorization")]
            flags = (f"--config={self.folder / 'scheduler.yaml'}", "--secure-port=0", "--v=2", *logins)
            self.kube_schedulers[address] = self._start(f"kube-scheduler-{address}", program, *flags)

    def _service(self, address: str) -> list[str]:
        ports = (("agents", AGENTS), ("extender", EXTENDER), ("metrics", METRICS))
        files = [f"--config={self.folder / 'config.yaml'}", f"--kubeconfig={self.folder / 'kubeconfig'}"]
        leads = [f"--lease={NAMESPACE}/{NAME}", f"--leader-endpoints={NAME}", f"--leader-endpoints={NAME}-extender"]
        listens = [f"--listen-{name}={address}:{port}" for name, port in ports]
        return [sys.executable, "-m", "scheduler_plugin", *files, *leads, *listens, f"--pod-ip={address}"]

    def start_forwarder(self) -> None:
        """Starts what leads clients to the leader."""
        leads = ((NAME, AGENTS), (NAME, METRICS), (f"{NAME}-extender", EXTENDER))
        ways = [f"{port}={ENDPOINT_SLICES.path(NAMESPACE, name)}" for name, port in leads]
        module = "tests.kubernetes.availability.slice_forwarder"
        self.forwarder = self._start("forwarder", sys.executable, "-m", module, str(self.folder / "kubeconfig"), *ways)

    def leader(self) -> str:
        """The address in both slices; empty where there is none, or another in each."""
        found = set[str]()
        for name in (NAME, f"{NAME}-extender"):
            endpoints = self.cluster.get("endpointslice", name, f"--namespace={NAMESPACE}").get("endpoints") or []
            found |= {endpoint["addresses"][0] for endpoint in endpoints} or {""}
        return found.pop() if len(found) == 1 else ""

    def calls(self, address: str) -> dict[str, float]:
        """How often kube-scheduler has called that replica since it was started, by verb and outcome."""
        status, page = asked(self.namespace, address, "GET", METRICS, "/metrics")
        assert status == 200, page
        lines = (line.removeprefix(CALLS).rpartition(" ") for line in page.splitlines() if line.startswith(CALLS + "{"))
        return {labels: float(count) for labels, _, count in lines}

    def leads(self, address: str) -> bool:
        """Whether that replica says that it leads."""
        return "autoscale_scheduler_leading 1.0" in asked(self.namespace, address, "GET", METRICS, "/metrics")[1]

    def strike(self, address: str, blow: signal.Signals, *, is_whole: bool) -> None:
        """A signal to our service, and to its kube-scheduler where the replica is struck as a whole."""
        for each in (self.services, self.kube_schedulers)[: 1 + is_whole]:
            each[address].send_signal(blow)

    def mend(self) -> None:
        """Both replicas run and have read the cluster, and one leads."""
        for address in ADDRESSES:
            for each in (self.services.get(address), self.kube_schedulers.get(address)):
                if each is not None:
                    each.send_signal(signal.SIGCONT)  # nothing happens where it has ended
            self.start_replica(address)
        for address in ADDRESSES:
            eventually(lambda address=address: self._is_ready_at(address), f"{self.folder}/service-{address}.log")  # type: ignore[misc]
        eventually(lambda: self.leader() != "" and self.leads(self.leader()), "one leads")

    def _is_ready_at(self, address: str) -> bool:
        try:
            return asked(self.namespace, address, "GET", METRICS, "/readyz")[0] == 200
        except OSError:
            return False

    def end(self) -> None:
        """Ends all; their logs stay."""
        for each in (*self.services.values(), *self.kube_schedulers.values(), self.forwarder):
            if each is not None:
                each.kill()
                each.wait()


def _has_ended(process: subprocess.Popen[bytes] | None) -> bool:
    return process is None or process.poll() is not None


@contextmanager
def replicated(cluster: RealKubernetes, folder: Path) -> Iterator[ReplicatedPrograms]:
    """Two replicas at work, and gone afterwards."""
    made = [*_of_the_chart("Role", "RoleBinding"), *_of_the_chart("EndpointSlice")]
    names = [f"{each['kind'].lower()}/{each['metadata']['name']}" for each in made]
    cluster.apply(*rights_and_settings(), *made)
    programs = ReplicatedPrograms(cluster, folder)
    programs.write_files()
    programs.write_kube_schedulers_settings()
    try:
        asyncio.run(ip_in(programs.namespace, *(f"address add {each}/32 dev lo" for each in ADDRESSES)))
        programs.start_forwarder()
        programs.mend()
        yield programs
    finally:
        programs.end()
        asyncio.run(ip_in(programs.namespace, *(f"address del {each}/32 dev lo" for each in ADDRESSES)))
        leases = [f"lease/{name}" for name in (NAME, "autoscaling-kube-scheduler")]
        cluster.kubectl("delete", *names, *leases, f"--namespace={NAMESPACE}", "--ignore-not-found")
