"""The check that the API server reaches our webhook, with a dry run of a VM's pod."""

from __future__ import annotations

from dataclasses import replace

import httpx2 as httpx
import pytest

from scripts.autoscale.check.facts import Observation, Observed, Unavailable
from scripts.autoscale.check.gathering import trials
from tests.scripts.check.good_state import NAMESPACE, Obj, good
from tests.scripts.check.test_gathering import client, status


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (httpx.Response(201, json={"spec": {"initContainers": [{"name": "autoscaler-agent"}]}}), Observed("")),
        (
            httpx.Response(201, json={"spec": {"containers": [{"name": "neonvm-runner"}]}}),
            Observed(trials.NO_AGENT),
        ),
        (
            status(500, "InternalError", 'failed calling webhook "pods.autoscaling.neon.tech": no route to host'),
            None,
        ),
        (status(403, "Forbidden", 'pods "x" is forbidden: exceeded quota: a'), None),
        (status(400, "BadRequest", 'admission webhook "validate.kyverno.svc-fail" denied the request: registry'), None),
    ],
)
async def test_vm_pod_shows_whether_webhook_is_reached(
    answer: httpx.Response, expected: Observation[str] | None
) -> None:
    """A port-forward reaches the webhook where the API server's own way is barred, as in a private GKE cluster."""
    tried = list[str]()

    def answered(request: httpx.Request) -> httpx.Response:
        if request.method == "POST":
            tried.append(request.url.path)
            return answer
        accounts = [{"metadata": {"name": "vm-agent", "namespace": each}} for each in (NAMESPACE, "out", "shop")]
        return httpx.Response(200, json={"metadata": {}, "items": accounts})

    closed: Obj = {"metadata": {"name": "out", "labels": {"autoscaling.neon.tech/inject-agent": "false"}}}
    found = await trials.injection(client(answered), replace(good(), namespaces=Observed([closed])))
    assert found == expected or (expected is None and isinstance(found, Unavailable))
    assert tried == ["/api/v1/namespaces/shop/pods"]


async def test_webhook_is_not_tried_without_need() -> None:
    def answered(request: httpx.Request) -> httpx.Response:
        assert request.method == "GET"
        return httpx.Response(200, json={"metadata": {}, "items": []})

    no_hooks = replace(good(), webhooks=Observed([]))
    looks = [await trials.injection(client(answered), facts) for facts in (good(), no_hooks)]
    said = ["no VM namespace has the service account vm-agent", "none of our webhooks is installed"]
    assert [each.why for each in looks if isinstance(each, Unavailable)] == said
