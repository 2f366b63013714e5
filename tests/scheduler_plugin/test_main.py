"""The program itself: it starts, is healthy without its API server, reloads, and ends when told."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from pathlib import Path

import httpx2 as httpx
import pytest
from fastapi import FastAPI

from deploy.neonvm.network.sockets import free_port, free_ports
from protocol.runtime.serving.listeners import Listener
from scheduler_plugin.__main__ import _serve_until, main
from tests.examples import THOROUGH
from tests.plain_http import plain_client

SETTINGS = "nodeDefaults: {computeUnit: {vCPUs: 1, mem: 1Gi}}"
KUBECONFIG = """
current-context: x
contexts: [{name: x, context: {cluster: c}}]
clusters: [{name: c, cluster: {server: "http://127.0.0.1:1"}}]
"""


def arguments(folder: Path) -> list[str]:
    (folder / "config.yaml").write_text(SETTINGS)
    (folder / "kubeconfig").write_text(KUBECONFIG)
    listens = zip(("agents", "extender", "metrics"), free_ports(3), strict=True)
    files = [f"--config={folder / 'config.yaml'}", f"--kubeconfig={folder / 'kubeconfig'}"]
    return files + [f"--listen-{name}=127.0.0.1:{port}" for name, port in listens]


@pytest.mark.parametrize("ending", [signal.SIGTERM, signal.SIGINT] if THOROUGH else [signal.SIGTERM])
async def test_serves_without_api_and_stops(tmp_path: Path, ending: signal.Signals) -> None:
    given = arguments(tmp_path)
    program = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "scheduler_plugin", *given, stderr=asyncio.subprocess.PIPE
    )
    assert program.stderr is not None
    said: dict[str, object] = {}
    while (said.get("msg"), said.get("listener")) != ("listening", "metrics"):
        said = json.loads(await program.stderr.readline())
    url = "http://" + given[-1].partition("=")[2]
    async with plain_client(base_url=url) as client:
        assert await answered(client, "/healthz") == 200
        assert await answered(client, "/readyz") == 503
    program.send_signal(ending)
    async with asyncio.timeout(5):
        _, rest = await program.communicate()
    assert program.returncode == 0, rest.decode()
    assert b"Traceback" not in rest


async def answered(client: httpx.AsyncClient, path: str) -> int:
    """Wait until the listener accepts connections. Returns the status."""
    async with asyncio.timeout(5):
        while True:
            try:
                return (await client.get(path)).status_code
            except httpx.ConnectError:
                await asyncio.sleep(0)


async def test_clients_are_served_until_lease_release() -> None:
    stop, address, said = asyncio.Event(), f"127.0.0.1:{free_port()}", list[object]()

    async def gives_back_at_its_end() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            async with plain_client(base_url=f"http://{address}") as client:
                said.append(await answered(client, "/"))

    async def retire() -> None:
        said.append("retires")

    serving = _serve_until(stop, retire, [Listener("agents", FastAPI(), address)], [gives_back_at_its_end()])
    running = asyncio.create_task(serving)
    async with plain_client(base_url=f"http://{address}") as client:
        assert await answered(client, "/") == 404
    stop.set()
    await running
    assert said == ["retires", 404]


@pytest.mark.parametrize(
    ("spoilt", "said"),
    [
        ({"config.yaml": "nodeDefaults: 3"}, "config.yaml: nodeDefaults: expected a mapping"),
        ({"kubeconfig": "{}"}, "no current-context is set: specify a context"),
    ],
)
def test_it_says_why_it_cannot_start(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], spoilt: dict[str, str], said: str
) -> None:
    given = arguments(tmp_path)
    for name, text in spoilt.items():
        (tmp_path / name).write_text(text)
    assert main(given) == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--tls-cert=x.pem"], "--tls-cert and --tls-key must be set together"),
        (["--extender-tls-key=x.pem"], "--extender-tls-cert and --extender-tls-key must be set together"),
        (["--extender-client-ca=x.pem"], "--extender-client-ca needs --extender-tls-cert and --extender-tls-key"),
        (["--extender-client-name=x"], "--extender-client-name needs --extender-client-ca"),
        (["--tls-cert=x.pem", "--tls-key=y.pem"], "invalid certificate of agents: "),
    ],
)
def test_half_of_a_certificate_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], flags: list[str], said: str
) -> None:
    assert main([*arguments(tmp_path), *flags]) == 2
    assert said in capsys.readouterr().err


def test_help_names_every_listener(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--help"])
    shown = capsys.readouterr().out
    assert ended.value.code == 0
    assert all(f"--listen-{name}" in shown for name in ("agents", "extender", "metrics"))
