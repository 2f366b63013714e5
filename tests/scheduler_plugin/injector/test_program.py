"""The program itself: it issues its certificate, serves with it, reloads settings, and ends when told."""

from __future__ import annotations

import asyncio
import json
import signal
import ssl
import sys
from pathlib import Path

import httpx2 as httpx

from deploy.neonvm.network.sockets import free_ports
from protocol.kubernetes.resources import CONFIG_MAPS, SECRETS, SERVICE_ACCOUNTS
from tests.local.apiserver.running import running_api_server
from tests.plain_http import plain_client
from tests.scheduler_plugin.injector.injecting import NAMESPACE, SETTINGS
from tests.scheduler_plugin.injector.pods import original, response, review

NAMES = ("autoscaling-certificates", "autoscaling-certificates-injector", "autoscaling-certificates-scheduler")


async def prepare(client: httpx.AsyncClient) -> None:
    for name in NAMES:
        made = await client.post(SECRETS.path(NAMESPACE), json={"metadata": {"name": name}})
        assert made.is_success, made.text
    for resource, namespace, name in (
        (CONFIG_MAPS, NAMESPACE, "autoscaling-ca"),
        (SERVICE_ACCOUNTS, "default", "vm-agent"),
    ):
        made = await client.post(resource.path(namespace), json={"metadata": {"name": name}})
        assert made.is_success, made.text


async def test_serves_tls_with_own_certificate(tmp_path: Path) -> None:
    settings = tmp_path / "settings.yaml"
    settings.write_text(SETTINGS)
    webhook, metrics = (f"127.0.0.1:{port}" for port in free_ports(2))
    async with running_api_server(tmp_path) as server:
        identity = {"Authorization": f"Bearer {server.token}"}
        async with plain_client(base_url=server.url, headers=identity) as client:
            await prepare(client)
            program = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "scheduler_plugin.injector"),
                *(f"--settings={settings}", f"--tls-folder={tmp_path}", f"--kubeconfig={server.kubeconfig_path}"),
                *(f"--listen-webhook={webhook}", f"--listen-metrics={metrics}"),
                stderr=asyncio.subprocess.PIPE,
            )
            assert program.stderr is not None
            lines: list[str] = []
            while not (lines and '"listener":"webhook"' in lines[-1]):
                lines.append((await program.stderr.readline()).decode())
                assert lines[-1], "".join(lines)
            bundle = (await client.get(CONFIG_MAPS.path(NAMESPACE, "autoscaling-ca"))).json()["data"]["ca.crt"]
            trusting = ssl.create_default_context(cadata=bundle)
            async with httpx.AsyncClient(verify=trusting, trust_env=False) as api_server:
                answer = await api_server.post(f"https://{webhook}/mutate", content=review(original()))
            found = response(answer.content)
            assert (found["allowed"], "patch" in found) == (True, True), found
        async with plain_client(base_url=f"http://{metrics}") as monitor:
            assert (await monitor.get("/readyz")).text == "ok, leading\n"
            page = (await monitor.get("/metrics")).text
        program.send_signal(signal.SIGTERM)
        async with asyncio.timeout(10):
            rest = (await program.communicate())[1].decode()
        assert program.returncode == 0, rest
    assert 'autoscale_injector_reviews_total{outcome="injected"} 1.0' in page
    assert 'autoscale_certificate_expiry_timestamp_seconds{certificate="injector",part="certificate"}' in page
    log = "".join(lines) + rest
    secrets = [line for line in (tmp_path / "own.pem").read_text().splitlines()[-4:] if not line.startswith("---")]
    assert [each for each in [server.token, *secrets] if each in log] == []
    assert all(json.loads(line)["level"] != "error" for line in log.splitlines())
