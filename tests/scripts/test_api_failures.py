"""A command's request that fails ends with one line that says what is wrong."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import httpx2 as httpx
import pytest

from deploy.kube.client import ApiClient
from protocol.kubernetes.api import ApiError
from protocol.kubernetes.resources import VIRTUAL_MACHINES
from protocol.messages import ObjectName
from protocol.runtime.credentials import CredentialsError
from protocol.runtime.kubernetes.http_api import HttpApi
from scripts.autoscale.cluster_flags import read_database
from scripts.autoscale.running import reason_of
from scripts.autoscale.site import SiteError

NOT_KUBERNETES = "the server at this address is not a Kubernetes API server"


def unreachable(_: httpx.Request) -> httpx.Response:
    raise httpx.ConnectError("All connection attempts failed")


def without_token(_: httpx.Request) -> httpx.Response:
    raise CredentialsError("/var/token: No such file or directory")


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        # The API server itself, without the CRDs.
        (
            lambda _: httpx.Response(404, text="404 page not found\n"),
            "the API server has no such resource (404): the CRDs are missing; autoscale check names them",
        ),
        (
            lambda _: httpx.Response(404, json={"reason": "NotFound", "message": 'namespaces "a" not found'}),
            'namespaces "a" not found (404)',
        ),
        (
            lambda _: httpx.Response(401, json={"reason": "Unauthorized", "message": "Unauthorized"}),
            "the API server rejected these credentials (401); they may have expired",
        ),
        (lambda _: httpx.Response(302, headers={"Location": "/login"}), f"{NOT_KUBERNETES} (302)"),
        (lambda _: httpx.Response(200, text="<html>\nSign in"), NOT_KUBERNETES),
        (lambda _: httpx.Response(502, text="<html>\n<h1>Bad gateway</h1>\n"), "502: <html> <h1>Bad gateway</h1>"),
        (unreachable, "cannot connect to https://k8s:6443 (All connection attempts failed)"),
        (without_token, "/var/token: No such file or directory"),
    ],
)
async def test_failed_request_is_explained(answer: Callable[[httpx.Request], httpx.Response], reason: str) -> None:
    """Without CRDs, ``autoscale top`` printed "404 page not found"; a rejected token was only "Unauthorized"."""
    http = httpx.AsyncClient(base_url="https://k8s:6443", transport=httpx.MockTransport(answer))
    async with ApiClient(HttpApi(http, lambda: None)) as client:
        with pytest.raises(ApiError) as failed:
            await client.list(VIRTUAL_MACHINES)
    assert reason_of(failed.value) == reason


@pytest.mark.parametrize(
    ("database", "reason"),
    [
        (ObjectName("shop", "db"), "there is no VM shop/db; see all databases: autoscale top"),
        (ObjectName("shop", "pod/pg-1"), "there is no pod shop/pg-1; see all databases: autoscale top"),
    ],
)
async def test_missing_database_is_named_with_its_namespace(database: ObjectName, reason: str) -> None:
    """Kubernetes names no namespace, so that one forgot `-n`."""
    missing = {"reason": "NotFound", "message": '"db" not found'}
    for answer, said in (
        (httpx.Response(404, json=missing), reason),
        (httpx.Response(404, text="404 page not found\n"), "the CRDs are missing"),
        (httpx.Response(403, json={"reason": "Forbidden", "message": "no"}), "no (403)"),
    ):
        http = httpx.AsyncClient(base_url="https://k8s:6443", transport=httpx.MockTransport(partial(_return, answer)))
        async with ApiClient(HttpApi(http, lambda: None)) as client:
            with pytest.raises((ApiError, SiteError)) as failed:
                await read_database(client, database)
        assert said in reason_of(failed.value)


def _return(answer: httpx.Response, _: httpx.Request) -> httpx.Response:
    return answer
