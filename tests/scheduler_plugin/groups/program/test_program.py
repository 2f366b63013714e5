"""The program itself: it starts without the API, reports invalid input, and stops on a signal."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from pathlib import Path

import httpx2 as httpx
import pytest

from deploy.neonvm.network.sockets import free_port
from scheduler_plugin.groups.__main__ import main

KUBECONFIG = """
current-context: x
contexts: [{name: x, context: {cluster: c}}]
clusters: [{name: c, cluster: {server: "http://127.0.0.1:1"}}]
"""


async def test_serves_without_api_and_stops(tmp_path: Path) -> None:
    (tmp_path / "kubeconfig").write_text(KUBECONFIG)
    address = f"127.0.0.1:{free_port()}"
    given = [f"--kubeconfig={tmp_path / 'kubeconfig'}", f"--listen={address}"]
    program = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "scheduler_plugin.groups", *given, stderr=asyncio.subprocess.PIPE
    )
    assert program.stderr is not None
    said: dict[str, object] = {}
    while said.get("msg") != "listening":
        said = json.loads(await program.stderr.readline())
    async with httpx.AsyncClient(base_url=f"http://{address}", trust_env=False) as client:
        assert (await client.get("/healthz")).status_code == 200
        assert (await client.get("/readyz")).status_code == 503
    program.send_signal(signal.SIGTERM)
    async with asyncio.timeout(5):
        _, rest = await program.communicate()
    assert (program.returncode, b"Traceback" in rest) == (0, False), rest.decode()


@pytest.mark.parametrize(
    ("settings", "kubeconfig", "said"),
    [
        ("intervalSeconds: soon", KUBECONFIG, "settings.yaml: intervalSeconds: expected"),
        ("", "{}", "no current-context is set: specify a context"),
    ],
)
def test_what_it_cannot_start_with_it_says(
    settings: str, kubeconfig: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "settings.yaml").write_text(settings)
    (tmp_path / "kubeconfig").write_text(kubeconfig)
    given = [f"--settings={tmp_path / 'settings.yaml'}", f"--kubeconfig={tmp_path / 'kubeconfig'}"]
    assert main(given) == 2
    assert said in capsys.readouterr().err
