"""The local page: only this machine can reach its port, and its failure never ends the command."""

from __future__ import annotations

import asyncio
import io
import logging
import re
import socket
from pathlib import Path
from typing import Any

import httpx2 as httpx
import pytest
from rich.console import Console

from deploy.kube.client import ApiClient
from protocol.runtime.kubernetes.http_api import HttpApi
from scripts.autoscale import page
from scripts.autoscale.clusters import ClusterFlags
from scripts.autoscale.history.recording import recording, site_sources, warnings_on
from scripts.autoscale.page import listen, quiet_logs, serving_page
from scripts.autoscale.site import RemoteSite, SiteError
from tests.neonvm.in_process import InProcess
from tests.scripts.clusters import cluster_at


def a_site(tmp_path: Path) -> RemoteSite:
    return RemoteSite(cluster_at(tmp_path / "kubeconfig"), InProcess().client())


async def said_on(console: Console) -> str:
    """The first output, in a running event loop without a clock."""
    while not (said := console.export_text()):
        await asyncio.to_thread(lambda: None)
    return said


@pytest.fixture
def console(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Console:
    """A screen, and a cluster of nothing but a kubeconfig that leads nowhere."""
    monkeypatch.setenv("AUTOSCALE_HOME", str(tmp_path))
    kubeconfig = {
        "clusters": [{"name": "x", "cluster": {"server": "http://127.0.0.1:9"}}],
        "users": [{"name": "x", "user": {}}],
        "contexts": [{"name": "x", "context": {"cluster": "x", "user": "x"}}],
        "current-context": "x",
    }
    (tmp_path / "kubeconfig").write_text(str(kubeconfig))
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "kubeconfig"))
    return Console(width=200, record=True, file=io.StringIO())


async def test_page_of_command_uses_a_free_port(
    tmp_path: Path, console: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        monkeypatch.setattr(page, "PORT", taken.getsockname()[1])
        async with serving_page(a_site(tmp_path), ClusterFlags(), console), httpx.AsyncClient(trust_env=False) as http:
            found = re.search(r"this link works once\): (\S+)#token=(\S+)", await said_on(console))
            assert found is not None
            url, token = found.groups()
            assert not url.endswith(f":{taken.getsockname()[1]}/")
            answer = await http.post(f"{url}api/session", json={"token": token})
            assert answer.json()["signedIn"]
        with pytest.raises(OSError, match="refused"):
            socket.create_connection(("127.0.0.1", int(url.rstrip("/").rpartition(":")[2])))


async def test_failed_page_does_not_end_the_command(
    tmp_path: Path, console: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(page, "PORT", 0)
    (tmp_path / "kubeconfig").write_text("{}")
    async with serving_page(a_site(tmp_path), ClusterFlags(), console):
        assert (await said_on(console)).startswith("The page has failed: ")


def test_taken_port_is_reported() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(SiteError, match=f"cannot listen on 127.0.0.1:{port}: .*--port"):
            listen(port)


def test_only_history_warnings_are_printed(console: Console) -> None:
    with quiet_logs(), warnings_on(console):
        logging.getLogger("autoscale.dashboard").warning("watch failed; retrying")
        logging.getLogger("autoscale.history").warning("history", extra={"note": "it was damaged: set aside"})
    assert console.export_text() == "history: it was damaged: set aside\n"


async def test_a_recorder_that_cannot_write_says_why(tmp_path: Path, console: Console) -> None:
    (tmp_path / "history.sqlite").mkdir()
    site = a_site(tmp_path)
    async with site_sources(site) as sources, recording(site.client.api, sources, tmp_path / "history.sqlite", console):
        assert (await said_on(console)).startswith(f"not recording: the history {tmp_path}")


async def test_failed_recorder_does_not_end_the_command(tmp_path: Path, console: Console) -> None:
    path = tmp_path / "history.sqlite"
    site: Any = Broken()
    async with recording(site.client.api, site, path, console):
        assert (await said_on(console)).startswith("recording has failed: ")


async def test_what_a_user_may_not_list_is_said(tmp_path: Path, console: Console) -> None:
    """Migrations are missing without a word: not every cluster knows them."""
    site: Any = Broken("/nodes", "/virtualmachinemigrations")
    async with recording(site.client.api, site, tmp_path / "history.sqlite", console):
        said = await said_on(console)
        while "has failed" not in said:
            said += await said_on(console)
    assert said.splitlines()[:-1] == ["not recorded: the API server refuses to list nodes"]


class Broken:
    """An empty cluster, whose scheduler is asked in a way that none may be, and which forbids lists at ``paths``."""

    def __init__(self, *paths: str) -> None:
        empty = {"metadata": {"resourceVersion": "1"}, "items": []}

        def answer(request: httpx.Request) -> httpx.Response:
            is_forbidden = request.url.path.endswith(paths)
            return httpx.Response(403 if is_forbidden else 200, json={"reason": "Forbidden"} if is_forbidden else empty)

        transport = httpx.MockTransport(answer)
        self.client = ApiClient(HttpApi(httpx.AsyncClient(base_url="http://api", transport=transport), lambda: None))

    async def of_scheduler(self, path: str) -> None:
        raise ZeroDivisionError(path)
