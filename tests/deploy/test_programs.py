"""Images, flags, variables, files and ports in the manifests match the programs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from agent.config import read_policy
from agent.core.policy import Policy
from agent.settings import OPTIONS, AgentSettings, read_settings
from deploy.images.catalogue import IMAGES
from protocol.names import SCHEDULER_NAME, TOKEN_AUDIENCE
from scheduler_plugin.expander.settings import host_and_port
from scheduler_plugin.expander.settings import parse_settings as parse_expander
from scheduler_plugin.groups.__main__ import parser as groups_parser
from scheduler_plugin.groups.settings import parse_settings as parse_groups
from scheduler_plugin.ledger.accounts.waiting_pods import PERCENT
from scheduler_plugin.options import parser as scheduler_parser
from scheduler_plugin.settings.document import CONFIG_KEY, parse_settings
from scripts.autoscale.site import EXPLAINS, GROUPS
from tests.deploy.manifests import ROOT, Document, Pod, container, documents, one, pods

TO_SCHEDULER, TO_EXTENDER, SCHEDULER_METRICS = 10299, 10298, 10297
TO_GUEST, AGENT_METRICS, KUBE_SCHEDULER = 9100, 9101, 10259
"""The ports that documents and people know by heart."""

REGISTRY = "localhost:5001"
AGENTS = ("agent", "autoscaler-agent")
FIELDS = {"spec.nodeName": "node-1", "metadata.name": "db-pod", "metadata.namespace": "default"}
"""What the kubelet puts in for a field of the pod."""

VM_NAME_FIELD = "metadata.labels['vm.neon.tech/name']"


def data(config_map: str, key: str = CONFIG_KEY) -> str:
    return str(one("ConfigMap", config_map)["data"][key])


def test_images_are_ours_or_kube_scheduler() -> None:
    used = {each["image"] for pod in pods() for each in pod.containers}
    foreign = {image for image in used if re.fullmatch(r"registry\.k8s\.io/kube-scheduler:v\d+\.\d+\.\d+", image)}
    services = {f"{REGISTRY}/{name}:dev" for name, image in IMAGES.items() if not image.is_guest}
    assert used - foreign <= services
    assert len(foreign) == 1


def test_vm_uses_disk_image() -> None:
    (vm,) = documents("vm-deploy.yaml")
    (guest,) = (name for name, image in IMAGES.items() if image.is_guest)
    assert vm["spec"]["guest"]["rootDisk"]["image"] == f"{REGISTRY}/{guest}:dev"
    assert vm["spec"]["schedulerName"] == SCHEDULER_NAME


def test_pod_ports_match_image() -> None:
    for pod in pods():
        for each in pod.containers:
            if (image := IMAGES.get(each["image"].rpartition("/")[2].removesuffix(":dev"))) is None:
                continue
            assert "command" not in each
            assert {port["containerPort"] for port in each["ports"]} <= set(image.ports)


def test_scheduler_parses_shipped_flags() -> None:
    service = container("service")
    options = scheduler_parser().parse_args(service["args"])
    (mount,) = service["volumeMounts"]
    assert options.config == Path(mount["mountPath"]) / CONFIG_KEY
    listening = (options.listen_agents, options.listen_extender, options.listen_metrics)
    assert listening == (f"0.0.0.0:{TO_SCHEDULER}", f"127.0.0.1:{TO_EXTENDER}", f"0.0.0.0:{SCHEDULER_METRICS}")
    named = {port["name"]: port["containerPort"] for port in service["ports"]}
    assert named == {"agents": TO_SCHEDULER, "metrics": SCHEDULER_METRICS}


def test_shipped_settings_load_with_node_agents() -> None:
    settings = parse_settings(data("autoscaling-scheduler-config"))
    account = one("DaemonSet", "autoscaling-agent")["spec"]["template"]["spec"]["serviceAccountName"]
    assert settings.node_agents == {f"kube-system:{account}"}
    assert (settings.scheduler_name, settings.audience) == (SCHEDULER_NAME, TOKEN_AUDIENCE)


def test_extender_is_configured_and_not_ignorable() -> None:
    found = yaml.safe_load(data("autoscaling-kube-scheduler-config", "scheduler.yaml"))
    assert container("kube-scheduler")["args"][0] == "--config=/etc/kube-scheduler/scheduler.yaml"
    assert [profile["schedulerName"] for profile in found["profiles"]] == [SCHEDULER_NAME]
    (extender,) = found["extenders"]
    assert extender.pop("urlPrefix") == f"http://127.0.0.1:{TO_EXTENDER}"
    assert extender.pop("weight") > 0
    verbs = {f"{verb}Verb": verb for verb in ("filter", "prioritize", "preempt", "bind")}
    assert extender == {**verbs, "nodeCacheCapable": True, "ignorable": False, "httpTimeout": "10s"}
    told = parse_settings(data("autoscaling-scheduler-config")).percent_of_nodes
    assert [profile["percentageOfNodesToScore"] for profile in found["profiles"]] == [told] == [PERCENT]


def environment(found: Document) -> dict[str, str]:
    """The variables of a container as the kubelet would set them."""
    return {each["name"]: each.get("value") or given(each) for each in found["env"]}


def given(variable: Document) -> str:
    field = variable["valueFrom"]["fieldRef"]["fieldPath"]
    return "db" if field == VM_NAME_FIELD else FIELDS[field]


def agent_settings(name: str) -> AgentSettings:
    found = environment(container(name))
    assert set(found) <= set(OPTIONS)
    return read_settings([], found)


def test_the_node_agent_understands_its_variables() -> None:
    settings = agent_settings("agent")
    assert (settings.assignment, settings.node) == (None, "node-1")
    assert settings.metrics_url == f"http://{{pod_ip}}:{TO_GUEST}/metrics"
    assert settings.policy_file == Path("/etc/autoscaler-agent/policy.yaml")


def test_the_sidecar_understands_its_variables() -> None:
    settings = agent_settings("autoscaler-agent")
    assert settings.assignment is not None
    assert (str(settings.assignment.vm), str(settings.assignment.pod)) == ("default/db", "default/db-pod")
    assert (settings.metrics_url, settings.database_url) == (
        f"http://127.0.0.1:{TO_GUEST}/metrics",
        "http://127.0.0.1:25184/database",
    ), "the pod forwards both, wherever its guest is"


@pytest.mark.parametrize("name", AGENTS)
def test_agent_finds_scheduler_with_own_token(name: str) -> None:
    settings, found = agent_settings(name), container(name)
    assert settings.scheduler_url == OPTIONS["SCHEDULER_URL"][0]
    service = one("Service", "autoscaling-scheduler")
    assert TO_SCHEDULER in {port["port"] for port in service["spec"]["ports"]}
    (pod,) = (pod for pod in pods() if found in pod.containers)
    assert settings.scheduler_token == mounted_token(pod, found)
    assert [port["containerPort"] for port in found["ports"]] == [settings.port] == [AGENT_METRICS]


def mounted_token(pod: Pod, found: Document) -> Path:
    """The file of the token for the scheduler; there is one, and it is for the scheduler alone."""
    (volume,) = (each for each in pod.spec["volumes"] if "projected" in each)
    (source,) = volume["projected"]["sources"]
    token = source["serviceAccountToken"]
    assert token["audience"] == TOKEN_AUDIENCE
    (mount,) = (each for each in found["volumeMounts"] if each["name"] == volume["name"])
    return Path(mount["mountPath"], token["path"])


def test_the_agents_policy_loads() -> None:
    assert isinstance(read_policy(data("autoscaling-agent", "policy.yaml"), Policy()), Policy)


def test_expander_service_and_certificate_match() -> None:
    found = container("expander")
    settings = parse_expander(data("autoscaling-expander-config"))
    mounts = {mount["name"]: mount["mountPath"] for mount in found["volumeMounts"]}
    assert found["args"] == [f"--config={mounts['config']}/{CONFIG_KEY}"]
    assert settings.tls is not None
    assert (settings.tls.certificate, settings.tls.key) == (f"{mounts['tls']}/tls.crt", f"{mounts['tls']}/tls.key")
    served = {
        "grpc": host_and_port("listen", settings.listen)[1],
        "metrics": host_and_port("metricsListen", settings.metrics_listen)[1],
    }
    assert {port["name"]: port["containerPort"] for port in found["ports"]} == served
    service = one("Service", "autoscaling-expander")
    assert {port["name"]: port["port"] for port in service["spec"]["ports"]} == served
    name = "autoscaling-expander.kube-system.svc"
    assert f"--grpc-expander-url={name}:{served['grpc']}" in (ROOT / "docs/expander.md").read_text()
    assert name in one("Certificate", "autoscaling-expander")["spec"]["dnsNames"]


def test_the_groups_program_understands_its_flags_and_settings() -> None:
    found = container("groups")
    options = groups_parser().parse_args(found["args"])
    (mount,) = found["volumeMounts"]
    assert options.settings == Path(mount["mountPath"]) / "settings.yaml"
    settings = parse_groups(data("autoscaling-groups-config", "settings.yaml"))
    assert settings == parse_groups("")
    (port,), (served,) = found["ports"], one("Service", "autoscaling-groups")["spec"]["ports"]
    assert options.listen == f"0.0.0.0:{port['containerPort']}" == f"0.0.0.0:{served['port']}"
    (rule,) = (each for each in one("Role", "autoscaling-groups")["rules"] if "resourceNames" in each)
    assert rule["resourceNames"] == [settings.lease.name]
    assert (served["port"], settings.lease.name) == EXPLAINS[GROUPS]


@pytest.mark.parametrize("pod", pods(), ids=lambda pod: pod.owner)
def test_scrapes_and_probes_use_existing_ports(pod: Pod) -> None:
    for each in pod.containers:
        names = {port["name"] for port in each.get("ports", ())}
        probes = [each[kind]["httpGet"] for kind in each if kind.endswith("Probe")]
        assert probes
        assert {probe["port"] for probe in probes} <= names | {KUBE_SCHEDULER}
        assert {probe["path"] for probe in probes} <= {"/healthz", "/readyz"}
