"""Two replicas of our service and of kube-scheduler, as the chart runs them, and what leads clients to the leader."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Any, Final

import yaml

from deploy.local.kubernetes.machine.credentials import INSIDE
from deploy.neonvm.network.commands import ip_in
from protocol.kubernetes.resources import ENDPOINT_SLICES
from protocol.runtime.explaining.explain_access import AUDIENCE
from scripts.manifests.__main__ import helm, template
from scripts.manifests.rendering import VALUES
from tests import plain_yaml
from tests.deploy.manifests import Document
from tests.kubernetes.real_kubernetes import RealKubernetes, eventually, kubectl_program
from tests.kubernetes.scheduling.programs import ACCOUNT, AGENTS, METRICS, Programs, asked, rights_and_settings

NAME: Final = "autoscaling-scheduler"
NAMESPACE: Final = "kube-system"
EXTENDER: Final = 10298
ADDRESSES: Final = ("10.199.0.2", "10.199.0.3")
"""An API server takes no address of loopback into a slice."""

WAYS: Final = {address: 6501 + number for number, address in enumerate(ADDRESSES)}
"""The port of loopback at which each replica reaches the API server; the server's certificate names that address."""

STEPS: Final = ("Lease lost", "Lease acquired", "leading", "EndpointSlice now points to this replica")
"""What one service logs, and then the one that succeeds it."""

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
    """``services``, ``kube_schedulers`` and ``ways`` to the API server, by the address that the service listens on."""

    ways: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    services: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    kube_schedulers: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    forwarder: subprocess.Popen[bytes] | None = None

    def write_files_of_replicas(self) -> None:
        """Kubeconfigs that lead over each replica's own way, and the chart's settings of kube-scheduler, without TLS:
        what stands for the Service is on loopback.
        """
        (found,) = _of_the_chart("ConfigMap", name="autoscaling-kube-scheduler-config")
        theirs = plain_yaml.load(found["data"]["scheduler.yaml"])
        (extender,) = theirs["extenders"]
        extender["urlPrefix"] = f"http://127.0.0.1:{EXTENDER}"
        del extender["enableHTTPS"], extender["tlsConfig"]
        direct = (self.folder / "kubeconfig").read_text()
        for address, port in WAYS.items():
            self.kubeconfig(address).write_text(direct.replace(INSIDE, f"https://127.0.0.1:{port}"))
            theirs["clientConnection"]["kubeconfig"] = str(self.kubeconfig(address))
            self._kube_schedulers_settings(address).write_text(yaml.safe_dump(theirs))

    def kubeconfig(self, address: str) -> Path:
        """Of the replica there."""
        return self.folder / f"kubeconfig-{address}"

    def _kube_schedulers_settings(self, address: str) -> Path:
        return self.folder / f"scheduler-{address}.yaml"

    def start_ways(self) -> None:
        """Starts what the replicas reach the API server by."""
        module, there = "tests.kubernetes.availability.api_way", INSIDE.removeprefix("https://")
        for address, port in WAYS.items():
            self.ways[address] = self._start(f"way-{address}", sys.executable, "-m", module, str(port), there)

    def start_replica(self, address: str) -> None:
        """Starts those of our service and its kube-scheduler that do not run."""
        if _has_ended(self.services.get(address)):
            self.services[address] = self._start(f"service-{address}", *self._service(address))
        if _has_ended(self.kube_schedulers.get(address)):
            program, kubeconfig = str(kubectl_program().parent / "kube-scheduler"), self.kubeconfig(address)
            logins = [f"--{what}-kubeconfig={kubeconfig}" for what in ("authentication", "authorization")]
            flags = (f"--config={self._kube_schedulers_settings(address)}", "--secure-port=0", "--v=2", *logins)
            self.kube_schedulers[address] = self._start(f"kube-scheduler-{address}", program, *flags)

    def _service(self, address: str) -> list[str]:
        ports = (("agents", AGENTS), ("extender", EXTENDER), ("metrics", METRICS))
        files = [f"--config={self.folder / 'config.yaml'}", f"--kubeconfig={self.kubeconfig(address)}"]
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
        """The address in both slices; empty if there is none, or another in each."""
        found = set[str]()
        for name in (NAME, f"{NAME}-extender"):
            endpoints = self.cluster.get("endpointslice", name, f"--namespace={NAMESPACE}").get("endpoints") or []
            found |= {endpoint["addresses"][0] for endpoint in endpoints} or {""}
        return found.pop() if len(found) == 1 else ""

    def get(self, path: str) -> tuple[int, Any]:
        """See ``Programs``; with a token, because the leader is not on loopback. Raises ``OSError``."""
        audience = f"--audience={AUDIENCE}"
        token = self.cluster.kubectl("create", "token", ACCOUNT, f"--namespace={NAMESPACE}", audience).strip()
        return self.ask("GET", METRICS, path, token=token)

    def calls(self, address: str) -> dict[str, float]:
        """Number of kube-scheduler's calls to that replica since its start, by verb and outcome."""
        status, page = asked(self.namespace, address, "GET", METRICS, "/metrics")
        assert status == 200, page
        lines = (line.removeprefix(CALLS).rpartition(" ") for line in page.splitlines() if line.startswith(CALLS + "{"))
        return {labels: float(count) for labels, _, count in lines}

    def leads(self, address: str) -> bool:
        """True if that replica says that it leads."""
        return "autoscale_scheduler_leading 1.0" in asked(self.namespace, address, "GET", METRICS, "/metrics")[1]

    def strike(self, address: str, blow: signal.Signals, parts: Iterable[str]) -> None:
        """A signal to those parts of the replica, by their names here."""
        for part in parts:
            struck: dict[str, subprocess.Popen[bytes]] = getattr(self, part)
            struck[address].send_signal(blow)

    def steps(self, address: str, began: float) -> dict[str, float]:
        """The replica's log lines about leadership, with seconds since ``began`` (since 1970)."""
        found = dict[str, float]()
        for line in (self.folder / f"service-{address}.log").read_text().splitlines():
            said = json.loads(line) if line.startswith("{") else {}
            after = datetime.fromisoformat(said["ts"]).timestamp() - began if said.get("msg") in STEPS else -1.0
            if after >= 0:
                found[said["msg"]] = after
        return found

    def mend(self) -> None:
        """Both replicas run and have read the cluster, and one leads."""
        for address in ADDRESSES:
            for each in (self.ways[address], self.services.get(address), self.kube_schedulers.get(address)):
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
        replicas = (*self.services.values(), *self.kube_schedulers.values(), *self.ways.values())
        for each in (*replicas, self.forwarder):
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
    programs.write_files_of_replicas()
    try:
        asyncio.run(ip_in(programs.namespace, *(f"address add {each}/32 dev lo" for each in ADDRESSES)))
        programs.start_ways()
        programs.start_forwarder()
        programs.mend()
        yield programs
    finally:
        programs.end()
        asyncio.run(ip_in(programs.namespace, *(f"address del {each}/32 dev lo" for each in ADDRESSES)))
        leases = [f"lease/{name}" for name in (NAME, "autoscaling-kube-scheduler")]
        cluster.kubectl("delete", *names, *leases, f"--namespace={NAMESPACE}", "--ignore-not-found")
