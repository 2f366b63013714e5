"""The original's programs, unchanged: each in its own process and environment, as its container would run it.

What their images and manifests give them is there: the service account's files and the settings' files. Nothing of the
machine changes: files stand in a mount namespace of the process.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import yaml

from deploy.local.certificates import issue
from deploy.local.kubernetes.plan.cluster_plan import API_PORT, CONTROL_HOST
from deploy.local.kubernetes.programs.build import Builder
from deploy.local.kubernetes.programs.toolchain import find_go
from protocol.runtime.certificates.issuing import Issued, Purpose
from tests.kubernetes.neon.places import Place
from tests.module_sets import NEON

ACCOUNT_FILES: Final = "run/secrets/kubernetes.io/serviceaccount"
AGENT_CONFIG: Final[dict[str, Any]] = {
    "refereshStateIntervalSeconds": 1,
    "scaling": {
        "computeUnit": {"vCPUs": 0.25, "mem": "1Gi"},
        "defaultConfig": {
            "loadAverageFractionTarget": 0.9,
            "memoryUsageFractionTarget": 0.75,
            "memoryTotalFractionTarget": 0.9,
            "enableLFCMetrics": False,
            "lfcUseLargestWindow": False,
            "lfcToMemoryRatio": 0.75,
            "lfcWindowSizeMinutes": 5,
            "lfcMinWaitBeforeDownscaleMinutes": 5,
            "cpuStableZoneRatio": 0,
            "cpuMixedZoneRatio": 0,
        },
    },
    "billing": {
        "cpuMetricName": "effective_compute_seconds",
        "activeTimeMetricName": "active_time_seconds",
        "collectEverySeconds": 4,
        "accumulateEverySeconds": 24,
        "clients": {},
    },
    "scalingEvents": {"cuMultiplier": 0.25, "rereportThreshold": 0.25, "regionName": "here", "clients": {}},
    "monitor": {
        "serverPort": 10301,
        "responseTimeoutSeconds": 5,
        "connectionTimeoutSeconds": 4,
        "connectionRetryMinWaitSeconds": 5,
        "unhealthyAfterSilenceDurationSeconds": 20,
        "unhealthyStartupGracePeriodSeconds": 20,
        "maxHealthCheckSequentialFailuresSeconds": 30,
        "retryDeniedDownscaleSeconds": 5,
        "requestedUpscaleValidSeconds": 10,
        "retryFailedRequestSeconds": 3,
        "maxFailedRequestRate": {"intervalSeconds": 120, "threshold": 2},
    },
    "metrics": {
        "system": {"port": 9100, "requestTimeoutSeconds": 2, "secondsBetweenRequests": 1},
        "lfc": {"port": 9499, "requestTimeoutSeconds": 5, "secondsBetweenRequests": 15},
    },
    "scheduler": {
        "schedulerName": "autoscale-scheduler",
        "requestTimeoutSeconds": 2,
        "requestAtLeastEverySeconds": 5,
        "retryFailedRequestSeconds": 1,
        "retryDeniedUpscaleSeconds": 2,
        "requestPort": 10299,
        "maxFailedRequestRate": {"intervalSeconds": 120, "threshold": 5},
    },
    "dumpState": {"port": 10300, "timeoutSeconds": 5},
    "neonvm": {
        "requestTimeoutSeconds": 10,
        "retryFailedRequestSeconds": 5,
        "maxFailedRequestRate": {"intervalSeconds": 120, "threshold": 2},
    },
}
"""``config.json`` of v0.49.1, which looks and asks more often here."""

ENFORCER: Final[dict[str, Any]] = {
    "watermark": 0.9,
    "scoring": {"minUsageScore": 0.5, "maxUsageScore": 0, "scorePeak": 0.8, "randomize": True},
    "schedulerName": "autoscale-scheduler",
    "reconcileWorkers": 16,
    "logSuccessiveFailuresThreshold": 10,
    "startupEventHandlingTimeoutSeconds": 15,
    "patchRetryWaitSeconds": 1,
    "k8sCRUDTimeoutSeconds": 1,
    "nodeMetricLabels": {},
    "ignoredNamespaces": [],
}
"""``autoscale-enforcer-config.json`` of v0.49.1."""

_SCHEDULER_CONFIG: Final[dict[str, Any]] = {
    "apiVersion": "kubescheduler.config.k8s.io/v1",
    "kind": "KubeSchedulerConfiguration",
    "leaderElection": {"leaderElect": False},
    "profiles": [
        {
            "schedulerName": "autoscale-scheduler",
            "plugins": {
                "multiPoint": {"enabled": [{"name": "AutoscaleEnforcer"}]},
                "score": {
                    "disabled": [
                        {"name": "ImageLocality"},
                        {"name": "NodeResourcesBalancedAllocation"},
                        {"name": "NodeResourcesFit"},
                    ]
                },
            },
        }
    ],
}
_APART: Final = ("unshare", "--mount", "--", "sh", "-c")
_MOUNTS: Final = """
mount --make-rprivate /
mount -t tmpfs -o mode=0755 none /run
mount -t tmpfs -o mode=0755 none /etc
cp -a "$0"/files/. /
exec setpriv --pdeathsig KILL -- "$@"
"""
"""What a container has for itself: ``$0`` is the program's folder."""


async def binaries() -> Path:
    """The folder of the programs, built once and kept."""
    return await asyncio.to_thread(
        lambda: Builder.default(find_go()).ensure(NEON, lambda line: print(line, flush=True))
    )


def account_files(token: str, authority: bytes) -> dict[str, bytes]:
    """Files that a kubelet mounts for a service account."""
    found = {"token": token.encode(), "ca.crt": authority, "namespace": b"kube-system"}
    return {f"{ACCOUNT_FILES}/{name}": content for name, content in found.items()}


def scheduler_files() -> dict[str, bytes]:
    """The settings of the original's scheduler."""
    return {
        "etc/scheduler-plugin-config/autoscale-enforcer-config.json": json.dumps(ENFORCER).encode(),
        "etc/kubernetes/scheduler-config.yaml": yaml.safe_dump(_SCHEDULER_CONFIG).encode(),
    }


def serving_files(signer: Issued, address: str) -> dict[str, bytes]:
    """The certificate of the controller's webhook at ``address``."""
    pair = issue(signer, Purpose("webhook", addresses=(address,)), datetime.now(UTC))
    folder = "run/k8s-webhook-server/serving-certs"
    return {f"{folder}/tls.crt": pair.certificate, f"{folder}/tls.key": pair.key}


@asynccontextmanager
async def container(
    place: Place, folder: Path, files: Mapping[str, bytes], *command: str, **environment: str
) -> AsyncIterator[subprocess.Popen[bytes]]:
    """A program at work in ``place`` with ``files``, its log in ``folder``; it must still run when its test is over."""
    for path, content in {"etc/hosts": b"127.0.0.1 localhost\n", **files}.items():
        (folder / "files" / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / "files" / path).write_bytes(content)
    log = folder / "log"
    api = {"KUBERNETES_SERVICE_HOST": CONTROL_HOST, "KUBERNETES_SERVICE_PORT": str(API_PORT)}
    with log.open("ab") as said:
        program = subprocess.Popen(  # noqa: ASYNC220 - it returns at once
            [*place.enter, *_APART, _MOUNTS, str(folder), *command],
            stdout=said,
            stderr=said,
            env={"PATH": os.environ["PATH"], "HOME": "/root", **api, **environment},
            start_new_session=True,
        )
    try:
        yield program
        assert program.poll() is None, f"it has ended: {log.read_text()[-3000:]}"
    finally:
        program.terminate()
        try:
            await asyncio.to_thread(program.wait, 5.0)
        except subprocess.TimeoutExpired:
            program.kill()
            program.wait()
