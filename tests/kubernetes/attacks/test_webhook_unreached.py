"""A real API server that does not reach our webhook makes pods of VMs without agents: ``autoscale check`` sees it."""

from __future__ import annotations

from dataclasses import replace

import httpx2 as httpx
import pytest

from deploy.kube.client import ApiClient
from protocol.kubernetes.objects import Json
from protocol.kubernetes.resources import MUTATING_WEBHOOKS
from protocol.runtime.kubernetes.http_api import HttpApi
from scripts.autoscale.check.facts import Observed
from scripts.autoscale.check.gathering.trials import NO_AGENT, injection
from tests.kubernetes.failing.bare_control_plane import BareControlPlane
from tests.kubernetes.failing.faulty_proxy import faulty_proxy
from tests.scripts.check.good_state import good

pytestmark = pytest.mark.kubernetes

WEBHOOK: Json = {
    "apiVersion": "admissionregistration.k8s.io/v1",
    "kind": "MutatingWebhookConfiguration",
    "metadata": {"name": "autoscaling-injector"},
    "webhooks": [
        {
            "name": "pods.autoscaling.neon.tech",
            "admissionReviewVersions": ["v1"],
            "sideEffects": "None",
            "failurePolicy": "Ignore",
            "timeoutSeconds": 1,
            "clientConfig": {"url": "https://127.0.0.1:1/mutate"},
            "rules": [
                {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]},
            ],
        }
    ],
}
"""Behind a firewall: nobody answers there."""


ACCOUNTS: list[Json] = [
    {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": name, "namespace": "default"}}
    for name in ("default", "vm-agent")
]


async def test_unreachable_webhook_is_reported(plane: BareControlPlane) -> None:
    """With ``failurePolicy: Ignore`` nothing else shows it, and a port-forward still reaches the webhook."""
    headers = {"Authorization": f"Bearer {plane.pki.admin_token}"}
    async with (
        faulty_proxy(plane) as way,
        httpx.AsyncClient(base_url=way.url, verify=plane.client_tls(), headers=headers, trust_env=False) as http,
    ):
        # The attacks before this one leave a configuration of that name, of other fields' owners.
        left = await http.delete(MUTATING_WEBHOOKS.path(name="autoscaling-injector"))
        assert left.status_code in {200, 404}
        plane.apply([WEBHOOK, *ACCOUNTS])
        facts = replace(good(), namespace="kube-system", webhooks=Observed([WEBHOOK]))
        found = await injection(ApiClient(HttpApi(http, lambda: None)), facts)
        (await http.delete(MUTATING_WEBHOOKS.path(name="autoscaling-injector"))).raise_for_status()
    assert found == Observed(NO_AGENT)
