"""Settings of an agent: flags override the environment, which overrides defaults."""

from __future__ import annotations

from pathlib import Path

import pytest

from agent.assignments import Assignment
from agent.settings import ACCOUNT, read_settings
from protocol.messages import ObjectName
from protocol.runtime.followed_file import SettingsError
from protocol.units import ComputeUnit
from protocol.versions import ProtocolVersion

SIDECAR = {"VM_NAME": "vm-1", "POD_NAME": "vm-1-pod", "POD_NAMESPACE": "default"}


def test_a_sidecar_needs_its_vm_and_its_pod() -> None:
    found = read_settings([], SIDECAR)
    assert found.assignment == Assignment(ObjectName("default", "vm-1"), ObjectName("default", "vm-1-pod"))
    assert found.node is None
    assert (found.scheduler_url, found.metrics_url) == (
        "http://autoscaling-scheduler.kube-system.svc:10299",
        "http://10.255.255.254:9100/metrics",
    )
    assert found.database_url == "http://10.255.255.254:25183/database"
    assert found.monitor_url == "ws://10.255.255.254:10301/monitor"
    assert (found.host, found.port, found.policy_file, found.scheduler_token) == ("0.0.0.0", 9101, None, None)


def test_monitor_is_on_by_default() -> None:
    assert read_settings([], SIDECAR | {"MONITOR_URL": "off"}).monitor_url is None
    assert read_settings([], SIDECAR | {"MONITOR_URL": "ws://[fd00::1]:1/m"}).monitor_url == "ws://[fd00::1]:1/m"


def test_node_agent_uses_monitor_in_pod() -> None:
    node = {"AGENT_MODE": "node", "NODE_NAME": "node-1"}
    assert read_settings([], node).monitor_url is None
    of_each = "ws://{pod_ip}:10301/monitor"
    assert read_settings([], node | {"MONITOR_URL": of_each}).monitor_url == of_each
    with pytest.raises(SettingsError, match="MONITOR_URL: with AGENT_MODE=node, expected"):
        read_settings([], node | {"MONITOR_URL": "ws://10.0.0.1:10301/monitor"})


def test_node_agent_scrapes_forwarded_port() -> None:
    """The address of a pod's own link is the same in all pods."""
    found = read_settings([], {"AGENT_MODE": "node", "NODE_NAME": "node-1"})
    assert found.metrics_url == "http://{pod_ip}:9100/metrics"
    assert found.database_url == "http://{pod_ip}:25183/database"


def test_flags_go_above_the_environment() -> None:
    found = read_settings(["--vm-name", "other", "--agent-listen", "127.0.0.1:0"], SIDECAR)
    assert found.assignment is not None
    assert (found.assignment.vm.name, found.host, found.port) == ("other", "127.0.0.1", 0)


def test_the_node_form_needs_its_node() -> None:
    found = read_settings([], {"AGENT_MODE": "node", "NODE_NAME": "node-1", "AGENT_LISTEN": "[::]:9101"})
    assert (found.assignment, found.node, found.host) == (None, "node-1", "::")


def test_v5_needs_own_compute_unit() -> None:
    found = read_settings([], SIDECAR | {"SCHEDULER_PROTOCOL": "v5.0", "COMPUTE_UNIT": "250m,1Gi"})
    assert (found.protocol, found.compute_unit) == (ProtocolVersion.V5_0, ComputeUnit.parse("250m", "1Gi"))
    usual = read_settings([], SIDECAR)
    assert (usual.protocol, usual.compute_unit) == (ProtocolVersion.V2_1, None)


def test_default_files_are_used_if_present(tmp_path: Path) -> None:
    named = {"KUBERNETES_TOKEN_FILE": str(tmp_path / "token"), "SCHEDULER_TOKEN_FILE": "/t", "AGENT_CONFIG": "/p.yaml"}
    found = read_settings([], SIDECAR | named)
    assert (found.api_token, found.scheduler_token, found.policy_file) == (
        tmp_path / "token",
        Path("/t"),
        Path("/p.yaml"),
    )
    assert found.api_ca == (ACCOUNT / "ca.crt" if (ACCOUNT / "ca.crt").exists() else None)


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        ({}, "VM_NAMESPACE: expected a value, it is not set"),
        ({"POD_NAMESPACE": "default"}, "VM_NAME: expected a value, it is not set"),
        ({"AGENT_MODE": "node"}, "NODE_NAME: expected a value, it is not set"),
        ({"AGENT_MODE": "both"}, "AGENT_MODE: expected sidecar or node, got 'both'"),
        (SIDECAR | {"AGENT_LISTEN": "9101"}, ""),
        (SIDECAR | {"SCHEDULER_PROTOCOL": "v3.0"}, "SCHEDULER_PROTOCOL: expected v2.1 or v5.0, got 'v3.0'"),
        (SIDECAR | {"COMPUTE_UNIT": "250m,1Gi"}, "COMPUTE_UNIT: only with SCHEDULER_PROTOCOL=v5.0"),
        (SIDECAR | {"SCHEDULER_PROTOCOL": "v5.0"}, "COMPUTE_UNIT: expected CPU and memory like 250m,1Gi: "),
        (SIDECAR | {"SCHEDULER_PROTOCOL": "v5.0", "COMPUTE_UNIT": "0,1Gi"}, "COMPUTE_UNIT: expected CPU and memory"),
        (SIDECAR | {"AGENT_LISTEN": "0.0.0.0:http"}, "AGENT_LISTEN: expected HOST:PORT, got '0.0.0.0:http'"),
        (SIDECAR | {"AGENT_LISTEN": ":99999"}, "AGENT_LISTEN: expected HOST:PORT, got ':99999'"),
        (SIDECAR | {"SCHEDULER_URL": "scheduler:10299"}, "SCHEDULER_URL: expected http://HOST… or https://HOST…"),
        (SIDECAR | {"KUBERNETES_API_URL": "https://"}, "KUBERNETES_API_URL: expected http://HOST… or https://HOST…"),
        (SIDECAR | {"METRICS_URL": "http://{pod_ip}:9100/metrics"}, "METRICS_URL: {pod_ip} needs AGENT_MODE=node"),
        (SIDECAR | {"METRICS_URL": "https://guest:9100/metrics"}, "METRICS_URL: expected http://HOST…, got 'https://g"),
        (SIDECAR | {"DATABASE_URL": "http://{pod_ip}:1/database"}, "DATABASE_URL: {pod_ip} needs AGENT_MODE=node"),
        (SIDECAR | {"MONITOR_URL": "ws://{pod_ip}:10301/monitor"}, "MONITOR_URL: {pod_ip} needs AGENT_MODE=node"),
        (SIDECAR | {"MONITOR_URL": "http://guest:10301"}, "MONITOR_URL: expected ws://HOST… or off, got 'http://"),
    ],
)
def test_bad_setting_names_its_variable(environment: dict[str, str], message: str) -> None:
    if not message:
        assert read_settings([], environment).port == 9101, "a port alone listens everywhere"
        return
    with pytest.raises(SettingsError) as caught:
        read_settings([], environment)
    assert str(caught.value).startswith(message)


def test_help_names_every_variable(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        read_settings(["--help"], {})
    assert caught.value.code == 0
    text = capsys.readouterr().out
    assert "--scheduler-url" in text
    assert "AGENT_CONFIG" in text


def test_only_node_agents_serve_pods() -> None:
    node = {"AGENT_MODE": "node", "NODE_NAME": "node-1"}
    found = read_settings([], node)
    assert (found.cgroup_root, found.reclaimer) == (None, None)
    paths = {"CGROUP_ROOT": "/host/cgroup", "RECLAIMER_SOCKET": "/run/reclaimer/reclaimer.sock"}
    found = read_settings([], node | paths)
    assert (found.cgroup_root, found.reclaimer) == tuple(map(Path, paths.values()))
    for name, path in paths.items():
        with pytest.raises(SettingsError, match=f"{name}: only with AGENT_MODE=node"):
            read_settings([], SIDECAR | {name: path})
