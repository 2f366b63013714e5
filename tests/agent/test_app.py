"""The whole process: it starts, serves, and stops with exit code 0."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from pathlib import Path

import pytest

from agent.__main__ import main
from agent.app import run
from agent.settings import read_settings
from deploy.neonvm.network.sockets import free_port
from protocol.runtime.clock import SystemClock
from tests.agent.fake_ports import Lines
from tests.plain_http import plain_client


def environment(tmp_path: Path, port: int, **more: str) -> dict[str, str]:
    """An agent of a pod whose cluster, scheduler and guest are all away."""
    (tmp_path / "policy.yaml").write_text("smoothing: {maxGap: 5s}")
    away = f"http://127.0.0.1:{free_port()}"
    return {
        "VM_NAME": "vm-1",
        "POD_NAME": "vm-1-pod",
        "POD_NAMESPACE": "default",
        "AGENT_LISTEN": f"127.0.0.1:{port}",
        "AGENT_CONFIG": str(tmp_path / "policy.yaml"),
        "SCHEDULER_URL": away,
        "METRICS_URL": f"{away}/metrics",
        "KUBERNETES_API_URL": away,
        **more,
    }


@pytest.mark.parametrize(
    "more", [{}, {"AGENT_MODE": "node", "NODE_NAME": "node-1"}, {"SCHEDULER_URL": "https://127.0.0.1:1"}]
)
async def test_serves_and_stops_without_any_backend(tmp_path: Path, more: dict[str, str]) -> None:
    port, stop = free_port(), asyncio.Event()
    settings = read_settings([], environment(tmp_path, port, **more))
    with Lines() as log:
        async with asyncio.TaskGroup() as tasks, plain_client() as http:
            tasks.create_task(run(settings, SystemClock(), stop))
            await log.says("agent started")
            assert (await http.get(f"http://127.0.0.1:{port}/healthz")).text == "ok\n"
            await log.says("cannot read the object", "cannot list the pods of this node")
            assert (await http.get(f"http://127.0.0.1:{port}/readyz")).status_code == 503
            stop.set()
    assert log.messages[-1] == "agent stopped"
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_sigterm_exits_zero(tmp_path: Path) -> None:
    port = free_port()
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "agent", env=environment(tmp_path, port), stderr=asyncio.subprocess.PIPE
    )
    assert process.stderr is not None
    first = json.loads(await process.stderr.readline())
    assert (first["level"], first["msg"], first["port"]) == ("info", "agent started", port)
    process.send_signal(signal.SIGTERM)
    rest = (await process.stderr.read()).decode().splitlines()
    assert await process.wait() == 0
    assert json.loads(rest[-1])["msg"] == "agent stopped"


def test_invalid_settings_exit_2(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["autoscaler-agent"])
    monkeypatch.setenv("AGENT_MODE", "both")
    with pytest.raises(SystemExit) as caught:
        main()
    assert caught.value.code == 2
    assert capsys.readouterr().err == "autoscaler-agent: AGENT_MODE: expected sidecar or node, got 'both'\n"
