"""The shipped kube-scheduler configuration and the shipped flags of the service speak of the same port and scheme.

The listeners are started as the program starts them, on free ports, and asked as the configuration says.
"""

from __future__ import annotations

import argparse
import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx2 as httpx
import pytest
import yaml

from protocol.runtime.explaining.explain_access import TokenInFile
from protocol.runtime.serving.listeners import serve, split_address
from scheduler_plugin.__main__ import listeners
from scheduler_plugin.options import parser
from tests.deploy.manifests import container, one
from tests.fake_clock import FakeClock
from tests.plain_http import plain_client
from tests.protocol.runtime.serving.test_listeners import free_address, listening
from tests.scheduler_plugin.certificates import files
from tests.scheduler_plugin.fake_cluster import NODES, FakeCluster
from tests.scheduler_plugin.objects import node, plain_pod
from tests.scheduler_plugin.running import running

(EXTENDER,) = yaml.safe_load(one("ConfigMap", "autoscaling-kube-scheduler-config")["data"]["scheduler.yaml"])[
    "extenders"
]
SHIPPED = container("service")["args"]


def test_kube_scheduler_uses_shipped_port_and_scheme() -> None:
    options = parser().parse_args(SHIPPED)
    url = urlsplit(EXTENDER["urlPrefix"])
    assert split_address(options.listen_extender) == (url.hostname, url.port)
    assert url.scheme == ("https" if options.extender_tls_cert else "http")
    assert bool(EXTENDER.get("enableHTTPS")) == (url.scheme == "https")


@asynccontextmanager
async def served(options: argparse.Namespace) -> AsyncIterator[None]:
    """All listeners of the program over a cluster with one node."""
    cluster, stop = FakeCluster(), asyncio.Event()
    cluster.put(NODES, node("n1"))
    async with running(cluster, FakeClock()) as scheduler:
        task = asyncio.create_task(
            serve(listeners(options, scheduler.parts.service, TokenInFile(Path("nowhere"))), stop)
        )
        try:
            await listening(options.listen_extender)
            await listening(options.listen_agents)
            yield
        finally:
            stop.set()
            await task


def on_free_ports(flags: list[str]) -> argparse.Namespace:
    options = parser().parse_args(flags)
    for name in ("listen_agents", "listen_extender", "listen_metrics"):
        setattr(options, name, free_address())
    return options


async def answers(options: argparse.Namespace) -> dict[str, Any]:
    """Responses that kube-scheduler gets if it calls as configured."""
    bodies: dict[str, Any] = {
        "filterVerb": {"Pod": plain_pod("p"), "Nodes": None, "NodeNames": ["n1"]},
        "prioritizeVerb": {"Pod": plain_pod("p"), "Nodes": None, "NodeNames": ["n1"]},
        "preemptVerb": {"Pod": plain_pod("p"), "NodeNameToMetaVictims": {"n1": {"Pods": []}}},
        "bindVerb": {"PodName": "p", "PodNamespace": "default", "PodUID": "none", "Node": "n1"},
    }
    url = urlsplit(EXTENDER["urlPrefix"])._replace(netloc=options.listen_extender).geturl()
    async with plain_client() as client:
        found = {verb: await client.post(f"{url}/{EXTENDER[verb]}", json=body) for verb, body in bodies.items()}
    assert {each.status_code for each in found.values()} == {200}
    return {verb: each.json() for verb, each in found.items()}


HEARD = {
    "filterVerb": {
        "Nodes": None,
        "NodeNames": ["n1"],
        "FailedNodes": {},
        "FailedAndUnresolvableNodes": {},
        "Error": "",
    },
    "prioritizeVerb": [{"Host": "n1", "Score": 5}],
    "preemptVerb": {"NodeNameToMetaVictims": {"n1": {"Pods": [], "NumPDBViolations": 0}}},
    "bindVerb": {"Error": "404: not found"},
}


async def test_every_verb_of_the_shipped_configuration_is_answered() -> None:
    options = on_free_ports(SHIPPED)
    async with served(options):
        assert await answers(options) == HEARD


async def test_agent_certificate_leaves_extender_port(
    tmp_path: Path,
) -> None:
    certificate, key = files(tmp_path, "server")
    options = on_free_ports([*SHIPPED, f"--tls-cert={certificate}", f"--tls-key={key}"])
    async with served(options):
        assert await answers(options) == HEARD
        trusting = ssl.create_default_context(cafile=str(certificate))
        async with httpx.AsyncClient(verify=trusting, trust_env=False) as client:
            assert (await client.post(f"https://{options.listen_agents}/", content=b"{}")).status_code == 401
        with pytest.raises(httpx.TransportError):
            await plain_client().post(f"http://{options.listen_agents}/", content=b"{}")


async def test_a_certificate_for_kube_scheduler_is_its_own(tmp_path: Path) -> None:
    certificate, key = files(tmp_path, "server")
    options = on_free_ports([*SHIPPED, f"--extender-tls-cert={certificate}", f"--extender-tls-key={key}"])
    async with (
        served(options),
        httpx.AsyncClient(verify=ssl.create_default_context(cafile=str(certificate)), trust_env=False) as client,
    ):
        assert (await client.post(f"https://{options.listen_extender}/bind", content=b"{}")).status_code == 200
        assert (await client.post(f"http://{options.listen_agents}/", content=b"{}")).status_code == 401
