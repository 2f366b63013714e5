"""Faults of an installation as they happen to people, each with what puts it right, and what the check says."""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from protocol.runtime.certificates.issuing import CertificateForm, common_name, new_key
from scripts.autoscale.check.finding import Level
from tests.deploy.manifests import ROOT, one
from tests.kubernetes.real_kubernetes import RealKubernetes, kubectl_program

SYSTEM: Final = "kube-system"
_SECONDS: Final = 60.0
STALE: Final = "autoscaling-injector-of-before"


@dataclass(frozen=True, slots=True)
class Outcome:
    """Output of the command. ``wrong`` maps names of lines with ! or × to their level and first sentence."""

    code: int
    wrong: dict[str, tuple[Level, str]]
    said: str


@dataclass(frozen=True, slots=True)
class Installation:
    """An installation on a cluster."""

    cluster: RealKubernetes

    def check(self, *more: str) -> Outcome:
        """Runs ``autoscale check -o json``, as people do."""
        program = (sys.executable, "-m", "scripts.autoscale.main", "check", "-o", "json")
        done = subprocess.run(
            [*program, "--kubeconfig", str(self.cluster.kubeconfig), *more],
            env={**self.cluster.environment, "PATH": f"{kubectl_program().parent}:{os.environ['PATH']}"},
            capture_output=True,
            text=True,
            check=False,
            timeout=_SECONDS,
        )
        assert done.stdout.startswith("{"), done.stderr
        found = {
            each["check"]: (Level[each["level"].upper()], each["said"])
            for each in json.loads(done.stdout)["checks"]
            if each["level"] in ("warning", "failure")
        }
        return Outcome(done.returncode, found, done.stdout)

    def patch(self, kind: str, name: str, body: object, *, how: str = "merge") -> None:
        """Changes an object of the installation's namespace."""
        typed = json.dumps(body)
        self.cluster.kubectl("patch", kind, name, f"--namespace={SYSTEM}", f"--type={how}", f"--patch={typed}")

    def kubectl(self, *arguments: str) -> str:
        """kubectl in the installation's namespace."""
        return self.cluster.kubectl(f"--namespace={SYSTEM}", *arguments)

    def get(self, *what: str) -> Any:
        """An object of the installation's namespace."""
        return self.cluster.get(f"--namespace={SYSTEM}", *what)

    def text_of(self, name: str, key: str) -> str:
        """The content of a ConfigMap."""
        return str(self.get("configmap", name)["data"][key])

    def rolled_out(self, what: str) -> None:
        """Waits until the pods of a workload are new."""
        self.kubectl("rollout", "status", what, "--timeout=90s")


Change = Callable[[Installation], None]


@dataclass(frozen=True, slots=True)
class Fault:
    """``make`` makes it and ``mend`` puts it right, or ``leaves_another``, which is the next; ``check`` names it with
    ``said`` in its sentence.
    """

    check: str
    said: str
    make: Change
    mend: Change
    level: Level = Level.FAILURE
    leaves_another: bool = False

    def __str__(self) -> str:
        return self.check


def applied(file: str) -> Change:
    arguments = ("apply", "--server-side", "--force-conflicts", f"--filename={ROOT / file}")
    return kubectl(*arguments)


def kubectl(*arguments: str) -> Change:
    def change(on: Installation) -> None:
        on.cluster.kubectl(*arguments)

    return change


def in_system(*arguments: str) -> Change:
    return kubectl(f"--namespace={SYSTEM}", *arguments)


def _drop_field(on: Installation) -> None:
    schema = "/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties/guest/properties/memorySlotSize"
    on.patch("crd", "virtualmachines.vm.neon.tech", [{"op": "remove", "path": schema}], how="json")


def _stale_webhook(on: Installation) -> None:
    """A webhook left by another installation; the injector would repair its own bundle within seconds."""
    stale = on.cluster.get("mutatingwebhookconfiguration", "autoscaling-injector")
    for webhook in stale["webhooks"]:
        webhook["name"] = f"before.{webhook['name']}"
        webhook["clientConfig"]["caBundle"] = base64.b64encode(_certificate("other", days=(-1, 1))).decode()
    on.cluster.apply(stale | {"metadata": {"name": STALE}})


def _certificate(name: str, days: tuple[int, int]) -> bytes:
    begin, end = (datetime.now(UTC) + timedelta(days=day) for day in days)
    return CertificateForm(common_name(name), begin, end).self_signed(new_key()).certificate_pem


def _expired(on: Installation) -> None:
    pem = base64.b64encode(_certificate("old", days=(-30, -2))).decode()
    body = {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": "autoscaling-certificates-old", "namespace": SYSTEM},
    }
    on.cluster.apply({**body, "data": {"tls.crt": pem, "ca.crt": pem}})


def _dead_holder(on: Installation) -> None:
    on.patch("lease", "neonvm-controller", {"spec": {"holderIdentity": "gone-1-2f", "leaseDurationSeconds": 3600}})


def _without_extender(on: Installation) -> None:
    text = on.text_of("autoscaling-kube-scheduler-config", "scheduler.yaml")
    on.patch(
        "configmap", "autoscaling-kube-scheduler-config", {"data": {"scheduler.yaml": text.partition("extenders:")[0]}}
    )


def _without_rights(on: Installation) -> None:
    rules = on.cluster.get("clusterrole", "autoscaling-scheduler")["rules"]
    for rule in rules:
        if rule["resources"] == ["virtualmachines"]:
            rule["verbs"].remove("patch")
    on.patch("clusterrole", "autoscaling-scheduler", {"rules": rules})


def _rights(on: Installation) -> None:
    on.patch("clusterrole", "autoscaling-scheduler", {"rules": one("ClusterRole", "autoscaling-scheduler")["rules"]})


def _extender(on: Installation) -> None:
    name = "autoscaling-kube-scheduler-config"
    on.patch("configmap", name, {"data": one("ConfigMap", name)["data"]})


def _bad_settings(on: Installation) -> None:
    text = on.text_of("autoscaling-scheduler-config", "config.yaml").replace("watermark: 0.9", "watermark: 9")
    on.patch("configmap", "autoscaling-scheduler-config", {"data": {"config.yaml": text}})


def _good_settings(on: Installation) -> None:
    text = on.text_of("autoscaling-scheduler-config", "config.yaml").replace("watermark: 9", "watermark: 0.9")
    on.patch("configmap", "autoscaling-scheduler-config", {"data": {"config.yaml": text}})


def _no_devices(on: Installation) -> None:
    nowhere = {"spec": {"template": {"spec": {"nodeSelector": {"autoscale.test/nowhere": "true"}}}}}
    on.patch("daemonset", "neonvm-devices", nowhere)


def _devices(on: Installation) -> None:
    on.patch("daemonset", "neonvm-devices", {"spec": {"template": {"spec": {"nodeSelector": None}}}})
    on.rolled_out("daemonset/neonvm-devices")


def _no_image(on: Installation) -> None:
    on.kubectl("set", "image", "daemonset/neonvm-network", "neonvm-network=localhost:5001/neonvm-network:none")


def _image(on: Installation) -> None:
    on.kubectl("set", "image", "daemonset/neonvm-network", "neonvm-network=localhost:5001/neonvm-network:dev")
    on.rolled_out("daemonset/neonvm-network")


def _restarted(on: Installation) -> None:
    on.kubectl("rollout", "restart", "deployment/autoscaling-scheduler")
    on.rolled_out("deployment/autoscaling-scheduler")


def _quota(on: Installation) -> None:
    body = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "few", "namespace": SYSTEM}}
    on.cluster.apply({**body, "spec": {"hard": {"pods": "1"}}})


def _twin(on: Installation) -> None:
    pod = {
        "metadata": {"labels": {"app": "twin"}},
        "spec": {"containers": [{"name": "x", "image": "example.invalid/x"}]},
    }
    spec = {"replicas": 1, "selector": {"matchLabels": {"app": "twin"}}, "template": pod}
    meta = {"name": "autoscale-scheduler", "namespace": "default"}
    on.cluster.apply({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": meta, "spec": spec})


FAULTS: Final = (
    Fault(
        "definitions-fields",
        "lacks spec.guest.memorySlotSize",
        _drop_field,
        applied("deploy/kubernetes/crds/virtualmachines.yaml"),
    ),
    Fault(
        "webhooks-trusted",
        f"the caBundle of {STALE} does not contain the CA",
        _stale_webhook,
        kubectl("delete", "mutatingwebhookconfiguration", STALE),
    ),
    Fault(
        "certificates-current",
        "of the Secret autoscaling-certificates-old (CN=old) expired",
        _expired,
        in_system("delete", "secret", "autoscaling-certificates-old"),
    ),
    Fault(
        "leases-held",
        "held by gone-1-2f, which is not a running pod",
        _dead_holder,
        in_system("delete", "lease", "neonvm-controller"),
    ),
    Fault(
        "rights-programs",
        "cannot patch virtualmachines.vm.neon.tech",
        _without_rights,
        _rights,
    ),
    Fault(
        "namespace-pod-security",
        "violates PodSecurity",
        kubectl("label", "namespace", SYSTEM, "pod-security.kubernetes.io/enforce=baseline"),
        kubectl("label", "namespace", SYSTEM, "pod-security.kubernetes.io/enforce-"),
    ),
    Fault("namespace-quota", "exceeded quota: few", _quota, in_system("delete", "resourcequota", "few")),
    Fault(
        "programs-alone",
        "Deployment default/autoscale-scheduler of the original project",
        _twin,
        kubectl("delete", "deployment", "autoscale-scheduler", "--namespace=default"),
    ),
    Fault("nodes-devices", "offers no autoscaling.neon.tech/guest-devices", _no_devices, _devices),
    Fault("programs-images", "cannot pull localhost:5001/neonvm-network:none", _no_image, _image),
    Fault(
        "settings-valid",
        "config.yaml in the ConfigMap autoscaling-scheduler-config is invalid: nodeDefaults.cpu.watermark",
        _bad_settings,
        _good_settings,
    ),
    Fault(
        "extender-configured",
        "no extender has port 10298",
        _without_extender,
        _extender,
        leaves_another=True,
    ),
    Fault(
        "extender-in-force",
        "started before its configuration was changed",
        lambda _: None,
        _restarted,
        Level.WARNING,
    ),
)
"""The last follows from the mended one before it: kube-scheduler reads its configuration once."""
