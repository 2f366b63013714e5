"""Debian's promtool and Prometheus on our rules and dashboards, over a local cluster that lives."""

from __future__ import annotations

import subprocess
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest
from prometheus_client import generate_latest

from deploy.local.cluster.control import ask_cluster
from deploy.local.cluster.control_plane import GROUPS_PORT, PROBES_PORT
from deploy.local.cluster.folder import ClusterFolder
from deploy.local.cluster.spec import ClusterSpec
from deploy.neonvm.addressing import DAEMON_PORT
from protocol.kubernetes.objects import Json, text
from protocol.messages import ObjectName
from protocol.runtime.explaining.probe_server import listening
from protocol.runtime.serving.http_requests import HttpResponse
from tests.deploy.monitoring.exposed import registries
from tests.deploy.monitoring.monitoring_files import RULES, dashboard_queries, rule_queries
from tests.deploy.monitoring.prometheus_server import prometheus
from tests.local.cluster.living import cluster, folder_in, seen
from tests.plain_http import plain_client

pytestmark = pytest.mark.monitoring

STORIES = sorted((Path(__file__).parent / "alerts").glob("*.yaml"))
ELSEWHERE = ("autoscale-expander", "autoscale-injector", "neonvm-controller", "neonvm-network", "neonvm-devices")
"""Programs that a local cluster does not run; their own pages are scraped from this process."""

AGENT_PORT = 9101
SPEC = ClusterSpec(guests="simulated", vms=2, load="idle", network="loopback", groups=True)


def promtool(*words: str, given: bytes = b"") -> str:
    """The error output of promtool; empty if there is none."""
    done = subprocess.run(["promtool", *words], input=given, capture_output=True, check=False)
    return "" if done.returncode == 0 else (done.stdout + done.stderr).decode()


@pytest.mark.parametrize("path", STORIES, ids=lambda path: path.stem)
def test_alerts_fire_on_their_series_only(path: Path) -> None:
    assert promtool("test", "rules", str(path)) == ""


def test_the_rules_are_well_formed() -> None:
    assert promtool("check", "rules", *map(str, RULES)) == ""


@pytest.mark.parametrize("program", sorted(registries()))
def test_names_and_types_are_as_prometheus_asks(program: str) -> None:
    page = generate_latest(registries()[program])
    assert promtool("check", "metrics", given=page) == ""


@asynccontextmanager
async def pages() -> AsyncIterator[dict[str, str]]:
    """The pages of programs that a local cluster lacks, by pod."""
    async with AsyncExitStack() as stack:
        found = {}
        for program, registry in registries().items():
            if program in ELSEWHERE:
                route = {"/metrics": lambda _, registry=registry: HttpResponse(generate_latest(registry))}
                port = await stack.enter_async_context(listening("127.0.0.1", 0, route))
                found[program] = f"127.0.0.1:{port}"
        yield found


async def targets(folder: ClusterFolder, vms: list[Json]) -> dict[str, str]:
    """Metrics addresses of a local cluster's programs, by pod."""
    host = (await ask_cluster(folder, "status")).host
    places = {"scheduler": (host, PROBES_PORT), "groups": (host, GROUPS_PORT)}
    places |= {text(vm, "status", "podName"): (text(vm, "status", "podIP"), AGENT_PORT) for vm in vms}
    exposed = {pod: await ask_cluster(folder, "expose", *place) for pod, place in places.items()}
    return {pod: f"127.0.0.1:{each.port}" for pod, each in exposed.items()}


def runs(vm: Json) -> bool:
    return text(vm, "status", "phase") == "Running"


async def press(folder: ClusterFolder, vm: Json, cores: float) -> None:
    """Put this demand on the VM's guest."""
    exposed = await ask_cluster(folder, "expose", text(vm, "status", "podIP"), DAEMON_PORT)
    async with plain_client(base_url=f"http://127.0.0.1:{exposed.port}") as http:
        (await http.put("/demand", json={"cpu": cores, "mem": "64Mi"})).raise_for_status()


async def test_dashboard_queries_have_series(tmp_path: Path) -> None:
    folder = folder_in(tmp_path, "dashboards")
    async with cluster(folder, SPEC), pages() as others:
        names = [ObjectName("default", f"vm-{number}") for number in (1, 2)]
        vms = [await seen(folder, name, runs) for name in names]
        async with prometheus(tmp_path, {**await targets(folder, vms), **others}) as server:
            waiting = dashboard_queries()

            async def all_answered() -> bool:
                waiting[:] = [each for each in waiting if not await server.query(each.expression)]
                return not waiting

            for cores in (3.0, 0.1):
                await press(folder, vms[0], cores)
            await press(folder, vms[0], 3.0)
            try:
                await server.until(all_answered)
            except TimeoutError:
                assert [f"{each.place}: {each.expression}" for each in waiting] == []
            for query in rule_queries():
                await server.query(query.expression)
            broken = (await server.http.get("/api/v1/rules")).json()["data"]["groups"]
            assert [rule for group in broken for rule in group["rules"] if rule["health"] == "err"] == []

            async def all_are_scraped() -> bool:
                return not await server.query("up == 0")

            # A scrape has a second: a single one may fail on a busy machine.
            await server.until(all_are_scraped)
