"""Certificates that last for half a minute, and CAs that sign for as long: no request fails meanwhile."""

from __future__ import annotations

import base64
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import httpx2 as httpx
import pytest
from cryptography import x509

from tests.kubernetes.injector.secured import NAMES, SECRETS, Secured, running
from tests.kubernetes.injector.test_agents_in_pods import agents_in, rehearsed
from tests.kubernetes.injector.vm_pods import runner_pod, small_vm
from tests.kubernetes.real_kubernetes import RealKubernetes, eventually
from tests.kubernetes.scheduling.agents import Agent
from tests.kubernetes.scheduling.books import PODS
from tests.kubernetes.scheduling.stage import Stage

pytestmark = pytest.mark.kubernetes

LIVES: Final = "{life: 30s, authorityLife: 90s}"
SECONDS: Final = 105.0
AGENTS: Final = 2


class Traffic:
    """Agents that keep requesting permits, each time over a new connection."""

    def __init__(self, agents: list[Agent]) -> None:
        self.agents = agents
        self.failures: list[str] = []
        self.answers = 0
        self._over = threading.Event()
        self._threads = [threading.Thread(target=self._ask, args=(each,), daemon=True) for each in agents]

    def _ask(self, agent: Agent) -> None:
        while not self._over.wait(0.1):
            try:
                status, answer = agent.ask(1, 2)
            except OSError as error:
                status, answer = 0, repr(error)
            if status == 200:
                self.answers += 1
            else:
                self.failures.append(f"{status} {answer}")

    def __enter__(self) -> Traffic:
        for each in self._threads:
            each.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for each in self._threads:
            each.join(10.0)


def test_certificate_rotation_fails_nothing(
    real_kubernetes: RealKubernetes,
    tmp_path: Path,
    api: httpx.Client,
    staged: Callable[[Secured], Stage],
) -> None:
    with running(real_kubernetes, tmp_path, LIVES) as (programs, mounts):
        stage = staged(programs)
        agents = [agent_of(stage, f"db-{number}") for number in range(AGENTS)]
        (shown,) = (mount for path, mount in mounts.items() if path.endswith("certificates-scheduler"))
        keys, until = set(key_lines(api)), time.monotonic() + SECONDS
        with Traffic(agents) as traffic:
            while time.monotonic() < until:
                time.sleep(3.0)
                answer = rehearsed(stage, runner_pod(stage, stage.get("virtualmachines", "db-0")))
                assert was_asked(answer), "the API server trusts the webhook all the time"
                keys |= set(key_lines(api))
        seen = [x509.load_pem_x509_certificate(each["tls.crt"]) for each in shown.versions]
        assert traffic.failures == []
        assert traffic.answers > SECONDS
        assert len({each.serial_number for each in seen}) >= 4
        assert len({each.issuer for each in seen}) >= 3
        tokens = {agent.token for agent in agents} | {told.split("token: ")[1].strip() for told in logins(tmp_path)}
        logs = [*tmp_path.glob("*.log"), *(real_kubernetes.folder / "logs").glob("*.log")]
        assert leaks(logs, keys | tokens) == []
        assert len(keys) > 12


def was_asked(answer: httpx.Response) -> bool:
    """True if the webhook was: it adds an agent, or says why not where a busy API server lets it wait for too long."""
    return len(agents_in(answer.json())) == 1 or "vm-agent cannot be read" in answer.headers.get("Warning", "")


def agent_of(stage: Stage, name: str) -> Agent:
    """The agent of a VM whose pod is placed."""
    vm = small_vm(stage, name)
    made = runner_pod(stage, vm, serviceAccountName="agent")
    made["metadata"]["labels"]["autoscaling.neon.tech/inject-agent"] = "false"
    answer = stage.http.post(stage.path(PODS), json=made)
    assert answer.is_success, answer.text
    stage.until_placed(name)
    agent = Agent.of(stage, stage.get(PODS, name))
    eventually(lambda: agent.ask(1, 2)[0] == 200, "its agent is heard", 10.0)
    return agent


def key_lines(api: httpx.Client) -> list[str]:
    """Secret content of our Secrets: the lines of each private key."""
    found = []
    for name in ("", *(f"-{each}" for each in NAMES)):
        data = api.get(f"{SECRETS}/autoscaling-certificates{name}").json().get("data", {})
        keys = [base64.b64decode(value).decode() for key, value in data.items() if key.endswith(".key")]
        found += [line for key in keys for line in key.splitlines() if line and not line.startswith("-----")]
    return found


def logins(folder: Path) -> list[str]:
    """The lines of kubeconfigs that have tokens."""
    files = [folder / "kubeconfig", folder / "injector.kubeconfig"]
    return [line for file in files for line in file.read_text().splitlines() if "token: " in line]


def leaks(logs: list[Path], secrets: set[str]) -> list[str]:
    """Logs that contain one of the secrets."""
    return [log.name for log in logs if any(secret in log.read_text(errors="replace") for secret in secrets)]
