"""The external metrics API of these tests as objects of the cluster: a pod that serves it, and who leads to it."""

from __future__ import annotations

import base64
import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from deploy.local.certificates import authority, issue
from deploy.local.kubernetes.plan.installation_plan import REFERENCE
from protocol.kubernetes.objects import Json
from protocol.runtime.certificates.issuing import Purpose
from tests.kubernetes.groups.scene import NAMESPACE, Object

API: Final = "apiservice/v1beta1.external.metrics.k8s.io"
FIGURES: Final = {"orders": "40", "legacy_orders": "3000"}
_NAME: Final = "external-metrics"
_SERVER: Final = Path(__file__).with_name("external_metrics_server.py")
_V1: Final = {"apiVersion": "v1"}
_ABOUT: Final = {"name": _NAME, "namespace": NAMESPACE}


def external_metrics(folder: Path) -> list[Object]:
    """All of it, with a certificate that the API server checks."""
    now, host = datetime.now(UTC), f"{_NAME}.{NAMESPACE}.svc"
    signer = authority(folder, now)
    pair = issue(signer, Purpose(_NAME, [host]), now)
    files = {
        "tls.crt": pair.certificate.decode(),
        "tls.key": pair.key.decode(),
        "server.py": _SERVER.read_text(),
    }
    return [
        {**_V1, "kind": "Secret", "metadata": _ABOUT, "stringData": files},
        _pod(),
        {
            **_V1,
            "kind": "Service",
            "metadata": _ABOUT,
            "spec": {"selector": {"app": _NAME}, "ports": [{"port": 443, "targetPort": 8443}]},
        },
        _api_service(signer.pair.certificate),
    ]


def external(name: str, per_replica: str) -> Object:
    """A metric of an HPA with this target per replica."""
    target = {"type": "AverageValue", "averageValue": per_replica}
    return {"type": "External", "external": {"metric": {"name": name}, "target": target}}


def _pod() -> Object:
    container: Json = {
        "name": "server",
        "image": REFERENCE.format(name="autoscale-groups"),
        "imagePullPolicy": "Never",
        "command": ["/usr/bin/python3", "/etc/server/server.py"],
        "env": [{"name": "FIGURES", "value": json.dumps(FIGURES)}],
        "readinessProbe": {
            "httpGet": {"path": "/healthz", "port": 8443, "scheme": "HTTPS"},
            "periodSeconds": 1,
            "timeoutSeconds": 10,
            "failureThreshold": 10,
        },
        "resources": {"requests": {"cpu": "100m"}},
        "volumeMounts": [{"name": "files", "mountPath": "/etc/server"}],
    }
    spec: Json = {
        "terminationGracePeriodSeconds": 0,
        "containers": [container],
        "volumes": [{"name": "files", "secret": {"secretName": _NAME}}],
    }
    return {**_V1, "kind": "Pod", "metadata": {**_ABOUT, "labels": {"app": _NAME}}, "spec": spec}


def _api_service(authority_pem: bytes) -> Object:
    return {
        "apiVersion": "apiregistration.k8s.io/v1",
        "kind": "APIService",
        "metadata": {"name": API.partition("/")[2]},
        "spec": {
            "group": "external.metrics.k8s.io",
            "version": "v1beta1",
            "groupPriorityMinimum": 100,
            "versionPriority": 100,
            "caBundle": base64.b64encode(authority_pem).decode(),
            "service": _ABOUT,
        },
    }
