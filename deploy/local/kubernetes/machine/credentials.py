"""Keys, certificates and kubeconfigs of a cluster, as files with mode 0600.

There are two CAs: the cluster's, and the front-proxy CA for the API server's client certificate for aggregated APIs.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Final

from deploy.local import kubeconfigs
from deploy.local.certificates import authority, issue, server_identity, signing_key
from deploy.local.kubernetes.plan.cluster_plan import API_PORT, API_SERVICE, CONTROL_HOST, NodePlan
from deploy.local.private_file import secret_file, write_private
from protocol.runtime.certificates.issuing import Issued, Purpose

INSIDE: Final = f"https://{CONTROL_HOST}:{API_PORT}"
"""The API server's URL in the cluster's network."""

_CONTROL_PLANE: Final = {
    "controller-manager": "system:kube-controller-manager",
    "scheduler": "system:kube-scheduler",
}


@dataclass(frozen=True, slots=True)
class Pki:
    """The keys and certificates of one cluster in ``folder``."""

    folder: Path
    signer: Issued
    now: datetime

    @classmethod
    def make(cls, folder: Path, now: datetime) -> Pki:
        """Create the CA and the control plane's credentials."""
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        pki = cls(folder, authority(folder, now), now)
        pki._write("api-server", pki.signer, server_identity("kube-apiserver", (CONTROL_HOST, API_SERVICE)))
        pki._write("kubelet-client", pki.signer, Purpose("kube-apiserver-kubelet-client"))
        # A separate CA: aggregated APIs trust any user name in the headers of a client with a front-proxy certificate.
        front_proxy_ca = authority(folder / "front-proxy", now)
        pki._write("front-proxy-client", front_proxy_ca, Purpose("front-proxy-client"))
        private, public = signing_key()
        write_private(folder / "service-accounts.key", private.decode())
        write_private(folder / "service-accounts.pub", public.decode())
        # Columns: token, user, uid, groups.
        owner = (pki.admin_token, kubeconfigs.ADMIN, kubeconfigs.ADMIN, kubeconfigs.MASTERS)
        write_private(folder / "tokens.csv", f"{','.join(owner)}\n")
        for name, user in _CONTROL_PLANE.items():
            write_private(folder / f"{name}.kubeconfig", pki.kubeconfig_of(Purpose(user)))
        return pki

    @property
    def admin_token(self) -> str:
        """The administrator's bearer token."""
        return secret_file(self.folder / "admin-token")

    def kubeconfig_of(self, identity: Purpose) -> str:
        """Kubeconfig of ``identity`` for the cluster's network, with a new client certificate."""
        pair = issue(self.signer, identity, self.now)
        login = kubeconfigs.certificate_login(pair.certificate, pair.key)
        return kubeconfigs.kubeconfig(INSIDE, self.signer.pair.certificate, identity.name, login)

    def admin_kubeconfig(self, server: str) -> str:
        """The administrator's kubeconfig for the API server at the URL ``server``."""
        return kubeconfigs.kubeconfig(
            server, self.signer.pair.certificate, kubeconfigs.ADMIN, kubeconfigs.token_login(self.admin_token)
        )

    def write_node(self, node: NodePlan, folder: Path) -> None:
        """Write the credentials of ``node`` and the CA into ``folder``."""
        write_private(folder / "ca.pem", self.signer.pair.certificate.decode())
        # The kubelet's serving certificate, which the API server checks when it fetches logs or runs commands.
        serving = issue(self.signer, Purpose(kubeconfigs.node_user(node.name), (node.name,), (node.address,)), self.now)
        write_private(folder / "kubelet.crt", serving.certificate.decode())
        write_private(folder / "kubelet.key", serving.key.decode())
        write_private(
            folder / "kubelet.kubeconfig",
            self.kubeconfig_of(Purpose(kubeconfigs.node_user(node.name), groups=(kubeconfigs.NODES,))),
        )
        write_private(folder / "kube-proxy.kubeconfig", self.kubeconfig_of(Purpose("system:kube-proxy")))

    def _write(self, name: str, signer: Issued, identity: Purpose) -> None:
        pair = issue(signer, identity, self.now)
        write_private(self.folder / f"{name}.crt", pair.certificate.decode())
        write_private(self.folder / f"{name}.key", pair.key.decode())
