"""The manifests say what the agent understands."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

import deploy
from agent.config import read_policy
from agent.core.policy import Policy
from agent.settings import OPTIONS, read_settings
from protocol.names import TOKEN_AUDIENCE

FOLDER = Path(deploy.__file__).parent / "kubernetes"


def documents(name: str) -> dict[str, dict[str, dict[str, object]]]:
    return {found["kind"]: found for found in yaml.safe_load_all((FOLDER / name).read_text())}


def pod_of(name: str) -> dict[str, list[dict[str, list[dict[str, object]]]]]:
    found = documents(name)
    if "DaemonSet" in found:
        return found["DaemonSet"]["spec"]["template"]["spec"]  # type: ignore[index,no-any-return]
    return yaml.safe_load(found["ConfigMap"]["data"]["pod.yaml"])["spec"]  # type: ignore[arg-type,no-any-return]


@pytest.mark.parametrize("name", ["agent-daemonset.yaml", "agent-sidecar.yaml"])
def test_the_agent_understands_its_variables(name: str) -> None:
    (container,) = pod_of(name)["containers"]
    given = {str(variable["name"]): str(variable.get("value", "from-the-pod")) for variable in container["env"]}
    assert set(given) <= set(OPTIONS)
    found = read_settings([], given)
    assert (found.assignment is None) == (name == "agent-daemonset.yaml")


@pytest.mark.parametrize("name", ["agent-daemonset.yaml", "agent-sidecar.yaml"])
def test_the_token_is_for_the_scheduler_alone(name: str) -> None:
    sources = [volume["projected"]["sources"] for volume in pod_of(name)["volumes"] if "projected" in volume]  # type: ignore[call-overload]
    assert [source["serviceAccountToken"]["audience"] for (source,) in sources] == [TOKEN_AUDIENCE]


def test_the_policy_that_is_shipped_is_the_default() -> None:
    text = documents("agent-daemonset.yaml")["ConfigMap"]["data"]["policy.yaml"]
    assert read_policy(str(text), Policy()) == Policy()
