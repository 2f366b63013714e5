"""cert-manager in a test's cluster: its own controllers and CRDs, and its settings."""

from __future__ import annotations

import base64
import json
import subprocess
from collections.abc import Iterator, Set
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from cryptography import x509

from deploy.local.kubernetes.programs.build import Builder
from deploy.local.kubernetes.programs.toolchain import find_go
from tests.kubernetes.adoption.release import NAMESPACE
from tests.kubernetes.real_kubernetes import RealKubernetes
from tests.module_sets import CERT_MANAGER

AUTHORITY: Final = "autoscaling-certificates"


@dataclass(frozen=True, slots=True)
class CertManager:
    """Manages the Certificates of the release's namespace. Secrets have their Certificates' names."""

    cluster: RealKubernetes

    def shown(self, secret: str) -> x509.Certificate:
        """The certificate that the Secret has."""
        data = self.cluster.get("secret", secret, f"--namespace={NAMESPACE}")["data"]
        return x509.load_pem_x509_certificate(base64.b64decode(data["tls.crt"]))

    def signs_with_a_new_key(self) -> None:
        """From now on: people do it by deleting the Secret of the authority."""
        self.cluster.kubectl("delete", "secret", AUTHORITY, f"--namespace={NAMESPACE}")

    def renews(self, name: str) -> None:
        """As ``cmctl renew`` asks it to."""
        found = self.cluster.get("certificate", name, f"--namespace={NAMESPACE}")
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        asked: dict[str, Any] = {
            "type": "Issuing",
            "status": "True",
            "reason": "ManuallyTriggered",
            "lastTransitionTime": now,
        }
        body = json.dumps({"status": {"conditions": [*found["status"]["conditions"], asked]}})
        target = ("certificate", name, f"--namespace={NAMESPACE}", "--subresource=status")
        self.cluster.kubectl("patch", *target, "--type=merge", f"--patch={body}")

    def certificates(self) -> Set[str]:
        """Those that the authority signs."""
        found = self.cluster.get("certificates", f"--namespace={NAMESPACE}")["items"]
        return {each["metadata"]["name"] for each in found} - {AUTHORITY}

    def secrets_are_taken_away(self) -> None:
        """Delete the Secrets by hand: cert-manager leaves them when the Certificates are deleted."""
        selector = "--selector=controller.cert-manager.io/fao=true"
        self.cluster.kubectl("delete", "secrets", f"--namespace={NAMESPACE}", selector)


@contextmanager
def cert_manager(cluster: RealKubernetes, folder: Path) -> Iterator[CertManager]:
    """Its controllers run, with the rights of the cluster's administrator, and keep their log in ``folder``."""
    programs = Builder.default(find_go()).ensure(CERT_MANAGER, lambda line: print(line, flush=True))
    kinds = [f"--filename={programs / Path(each).name}" for each in CERT_MANAGER.files]
    cluster.kubectl("apply", "--server-side", *kinds)
    try:
        cluster.kubectl("wait", "--for=condition=Established", "--timeout=30s", *kinds)
        with (folder / "log").open("wb") as log:
            command = [programs / "cert-manager", cluster.kubeconfig]
            running = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
        try:
            yield CertManager(cluster)
            assert running.poll() is None, f"it has ended: {(folder / 'log').read_text()[-3000:]}"
        finally:
            running.terminate()
            running.wait(10.0)
    finally:
        cluster.kubectl("delete", "--ignore-not-found", *kinds)
