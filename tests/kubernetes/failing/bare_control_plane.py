"""A real etcd and kube-apiserver without nodes and controllers, which a test may kill, stop and restore.

Both are in a network namespace without a name: when their test ends, however it ends, the kernel ends them and with
the last of them the namespace.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import socket
import ssl
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import yaml

from deploy.local.certificates import server_context
from deploy.local.cluster.content import CRD_FOLDERS
from deploy.local.kubernetes.machine.control_programs import API_SERVER, STORE, control_programs
from deploy.local.kubernetes.machine.credentials import INSIDE, Pki
from deploy.local.kubernetes.plan.arguments import ETCD_URL
from deploy.local.kubernetes.plan.cluster_plan import API_PORT, CONTROL_HOST
from deploy.local.kubernetes.programs.ensure import Programs, ensure_programs
from deploy.local.kubernetes.programs.versions import ETCD
from deploy.local.process import LocalProgram
from deploy.neonvm.network.netns import socket_in
from protocol.kubernetes.resources import VIRTUAL_MACHINES
from tests.deploy.manifests import ROOT
from tests.kubernetes.real_kubernetes import VERSION, eventually

ADDRESS: Final = (CONTROL_HOST, API_PORT)
"""The API server's, inside."""

_NAMESPACE: Final = ("unshare", "--net", "--", "setpriv", "--pdeathsig", "KILL", "--", "sh", "-c")
_LOOPBACK: Final = f"ip link set lo up && ip address add {CONTROL_HOST}/32 dev lo && echo up && exec sleep infinity"
_MANIFESTS: Final = (
    "scheduler-deploy.yaml",
    "kubernetes/groups.yaml",
    "kubernetes/neonvm-controller.yaml",
    "kubernetes/agent-sidecar.yaml",
    "kubernetes/agent-daemonset.yaml",
)
_POLICIES: Final = "kubernetes/policies"
_IDENTITIES: Final = frozenset({
    *("ServiceAccount", "ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding", "Secret"),
    *("ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"),
})  # fmt: skip
_DEFAULT_ACCOUNT: Final = {
    "apiVersion": "v1",
    "kind": "ServiceAccount",
    "metadata": {"name": "default", "namespace": "default"},
}
"""A controller makes it, and no controller runs."""

_AUDIT: Final = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived", "ResponseStarted"],
    "rules": [
        {"level": "RequestResponse", "verbs": ["create", "update", "patch", "delete"]},
        {"level": "None"},
    ],
}


@dataclass(slots=True)
class BareControlPlane:
    """Its parts by name: ``etcd`` and ``kube-apiserver``."""

    folder: Path
    programs: Programs
    holder: subprocess.Popen[str]
    pki: Pki
    running: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    stores: int = 0

    def start(self, *parts: str) -> None:
        """Starts parts; ``ready`` says when they answer."""
        for part in parts:
            program = self._program(part)
            program.log.parent.mkdir(exist_ok=True)
            with program.log.open("ab") as log:
                self.running[part] = subprocess.Popen(program.argv, stdout=log, stderr=log, start_new_session=True)

    def kill(self, *parts: str) -> None:
        """Ends parts at once (SIGKILL); nothing for one that does not run."""
        for part in parts:
            if process := self.running.pop(part, None):
                process.kill()
                process.wait()

    def revive(self) -> None:
        """Starts what does not run; ``ready`` says when it answers."""
        self.start(*(part for part in (STORE, API_SERVER) if part not in self.running))

    def ready(self, path: str = VIRTUAL_MACHINES.path()) -> None:
        """Returns once the API server is ready and has read the definition of VMs, which takes longer."""
        asked = ("get", "--raw")
        eventually(lambda: self._said(*asked, "/readyz") == "ok", "the API server is ready")
        eventually(lambda: bool(self._said(*asked, path)), f"{path} is served")

    def apply(self, documents: Sequence[Any]) -> None:
        """Creates objects."""
        text = yaml.safe_dump_all(documents)
        self._run(*self._kubectl, "apply", "--server-side", "--filename=-", typed=text)

    def prepare(self) -> None:
        """Defines our kinds, and gives our programs the rights and the fences that they have anywhere."""
        self._run(*self._kubectl, "apply", "--server-side", f"--filename={CRD_FOLDERS[0]}")
        files = [ROOT / "deploy" / name for name in _MANIFESTS] + sorted((ROOT / "deploy" / _POLICIES).iterdir())
        found = [each for file in files for each in yaml.safe_load_all(file.read_text())]
        identities = [each for each in found if each["kind"] in _IDENTITIES]
        self.apply([_DEFAULT_ACCOUNT, *identities])

    def save(self) -> Path:
        """A snapshot of the store."""
        snapshot = self.folder / f"snapshot-{time.monotonic_ns()}"
        self._run(*self._etcd_tool("etcdctl"), f"--endpoints={ETCD_URL}", "snapshot", "save", str(snapshot))
        return snapshot

    def restore(self, snapshot: Path, *flags: str) -> None:
        """Restore an older store as Kubernetes documents it, with API server and etcd down. ``flags`` are extra flags
        of ``etcdutl snapshot restore``.

        ``flags`` are more of ``etcdutl snapshot restore``.
        """
        self.kill(API_SERVER, STORE)
        self.stores += 1
        peer = "http://127.0.0.1:2380"
        member = ("--name=control", f"--initial-cluster=control={peer}", f"--initial-advertise-peer-urls={peer}")
        into = f"--data-dir={self._data}"
        self._run(*self._etcd_tool("etcdutl"), "snapshot", "restore", str(snapshot), into, *member, *flags)
        self.start(STORE, API_SERVER)

    def compact(self) -> None:
        """Forgets the history of the store."""
        etcdctl = (*self._etcd_tool("etcdctl"), f"--endpoints={ETCD_URL}")
        said = json.loads(self._run(*etcdctl, "endpoint", "status", "--write-out=json").stdout)
        self._run(*etcdctl, "compact", str(said[0]["Status"]["header"]["revision"]))

    def connection(self) -> socket.socket:
        """A socket, not yet connected, from which ``ADDRESS`` can be reached."""
        return socket_in(f"/proc/{self.holder.pid}/ns/net")

    def client_tls(self) -> ssl.SSLContext:
        """A TLS context that trusts the API server."""
        return ssl.create_default_context(cadata=self.pki.signer.pair.certificate.decode())

    def server_tls(self) -> ssl.SSLContext:
        """A TLS context that the cluster's clients accept for the API server on loopback."""
        return server_context(self.pki.signer, (), datetime.now(UTC))

    def written(self) -> list[dict[str, Any]]:
        """Every write that the API server executed, oldest first, from its audit log."""
        lines = (self.folder / "audit.log").read_text().splitlines()
        return [json.loads(line) for line in lines if line.endswith("}")]

    def refused_by_fences(self) -> list[str]:
        """Rejections of our programs by admission policies in all tests so far."""
        said = [str(each.get("responseStatus", {}).get("message", "")) for each in self.written()]
        return [each for each in said if "ValidatingAdmissionPolicy" in each]

    @property
    def _data(self) -> Path:
        return self.folder / f"etcd-{self.stores}"

    @property
    def _enter(self) -> tuple[str, ...]:
        return ("nsenter", f"--target={self.holder.pid}", "--net", "--")

    @property
    def _kubectl(self) -> tuple[str, ...]:
        return (str(self.programs.kubernetes / "kubectl"), f"--kubeconfig={self.folder / 'admin.kubeconfig'}")

    def _etcd_tool(self, name: str) -> tuple[str, ...]:
        return (str(self.programs.folders[ETCD.name] / name),)

    def _program(self, part: str) -> LocalProgram:
        logs = self.folder / "logs"
        program = control_programs(self.pki.folder, self._data, logs, self._enter, self.programs)[part]
        if part == STORE:
            return program
        audit = (f"--audit-policy-file={self.folder / 'audit.yaml'}", f"--audit-log-path={self.folder / 'audit.log'}")
        return replace(program, command=(*program.command, *audit))

    def _said(self, *asked: str) -> str:
        return self._run(*self._kubectl, *asked, check=False).stdout

    def _run(self, *command: str, typed: str = "", check: bool = True) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [*self._enter, *command], input=typed, capture_output=True, text=True, check=False, timeout=60.0
        )
        assert not check or done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
        return done


@contextmanager
def control_plane(folder: Path) -> Iterator[BareControlPlane]:
    """One that is ready, with our kinds and our programs' rights."""
    programs = asyncio.run(ensure_programs(VERSION, (), print))
    pki = Pki.make(folder / "pki", datetime.now(UTC))
    (folder / "admin.kubeconfig").write_text(pki.admin_kubeconfig(INSIDE))
    (folder / "audit.yaml").write_text(yaml.safe_dump(_AUDIT))
    with subprocess.Popen([*_NAMESPACE, _LOOPBACK], stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        plane = BareControlPlane(folder, programs, holder, pki)
        try:
            assert holder.stdout.readline() == "up\n"
            plane.start(STORE, API_SERVER)
            plane.ready("/version")
            plane.prepare()
            plane.ready()
            yield plane
        finally:
            plane.kill(API_SERVER, STORE)
            holder.kill()
            shutil.rmtree(folder, ignore_errors=True)
