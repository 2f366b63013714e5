"""``scripts/cluster-init.sh`` with fake programs that record their calls."""

from __future__ import annotations

import os
import shutil
import subprocess
import tarfile
from pathlib import Path
from typing import Any

import pytest

from tests import plain_yaml

ROOT = Path(__file__).resolve().parents[2]
PARTS = ("cert-manager", "multus-dev", "whereabouts", "neonvm-runner-image-loader", "neonvm")
LATER_PARTS = ("neonvm-controller", "neonvm-vxlan-controller")

RECORDER = """#!/bin/bash
# Notes each call, and what it is given to read; answers what the script needs to know.
call="$SEEN/${EPOCHREALTIME/[.,]/}.$$"
printf '%s\\n' "${0##*/} $*" >"$call.call"
case "${0##*/} $*" in
  *" diff "*) cat >"$call.given"; echo "-  old"; exit "$DIFFERS" ;;
  *" -f -" | "docker exec -i "*) cat >"$call.given" ;;
  *" get configmap "*) for known in $KNOWN; do case "$*" in *" $known "*) echo "configmap/$known" ;; esac; done ;;
  *" get $OTHER --all-namespaces "*) printf '%s' "$OTHER_RUNS" ;;
  *" get --raw /version") echo '{"major": "1", "gitVersion": "v1.33.7-eks-1", "goVersion": "go1"}' ;;
  "kind get clusters") echo other ;;
  "kind get nodes "*) printf 'one\\ntwo\\n' ;;
  "docker inspect $MISSING") exit 1 ;;
esac
"""


class Machine:
    """A copy of the scripts and manifests, and programs that only note their calls."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.seen = folder / "seen"
        self.seen.mkdir()
        for name in ("scripts", "deploy"):
            shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("*.py", "__pycache__", "local"))
        self.deployments = folder / "build/deployments"
        (folder / "bin").mkdir()
        for program in ("kubectl", "kind", "docker"):
            (folder / "bin" / program).write_text(RECORDER)
            (folder / "bin" / program).chmod(0o755)

    def has_downloads(self) -> None:
        """Create the files that the download scripts would leave."""
        self.deployments.mkdir(parents=True)
        for part in (*PARTS, *LATER_PARTS):
            self.deployments.joinpath(f"{part}.yaml").write_text(f"kind: Part\nmetadata:\n  name: {part}\n")
        plugins = self.folder / "build/cni"
        plugins.mkdir()
        for name in ("bridge", "archive.tgz"):
            plugins.joinpath(name).write_text(name)

    def run(self, *arguments: str, missing: str = "nothing", **more: str) -> subprocess.CompletedProcess[str]:
        """Runs the script; ``missing`` is a container that docker does not have.

        ``KNOWN`` are the ConfigMaps of the cluster, ``DIFFERS`` is how ``kubectl diff`` ends, ``OTHER`` is a kind of
        which ``OTHER_RUNS`` says the namespaces and replicas.
        """
        path = f"{self.folder / 'bin'}:{os.defpath}"
        environment = {"PATH": path, "SEEN": str(self.seen), "MISSING": missing, "KNOWN": "", "OTHER": "-", **more}
        command = [str(self.folder / "scripts/cluster-init.sh"), *arguments]
        return subprocess.run(command, capture_output=True, text=True, timeout=30, env=environment, check=False)

    def calls(self) -> list[str]:
        """All calls so far, in order."""
        return [file.read_text().strip() for file in sorted(self.seen.glob("*.call"))]

    def applied(self) -> list[list[str]]:
        """The names of the objects of each apply, in order."""
        return [[name_of(each) for each in documents] for documents in self.manifests()]

    def manifests(self) -> list[list[dict[str, Any]]]:
        """The objects of each apply, in order."""
        found = (file for file in sorted(self.seen.glob("*.given")) if "apply" in file.with_suffix(".call").read_text())
        return [plain_yaml.load_all(file.read_text()) for file in found]

    def settings(self) -> list[str]:
        """The ConfigMaps that were applied, in order."""
        return [name_of(each) for one in self.manifests() for each in one if each["kind"] == "ConfigMap"]


def name_of(document: dict[str, Any]) -> str:
    return str(document["metadata"]["name"])


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_manifests_are_applied_to_named_context(machine: Machine) -> None:
    result = machine.run("--context", "prod", "--only-ours")
    assert (result.returncode, result.stderr) == (0, "")
    assert all(call.startswith("kubectl --context prod ") for call in machine.calls())
    resources, settings, kube_scheduler_settings, scheduler, policy, agents = machine.applied()
    assert (settings, kube_scheduler_settings, policy) == (SETTINGS[:1], SETTINGS[1:2], SETTINGS[2:])
    assert set(resources) == {"virtualmachines.vm.neon.tech", "virtualmachinemigrations.vm.neon.tech"}
    assert "autoscaling-scheduler" in scheduler
    assert "autoscaling-agent" in agents
    assert [call.split(" prod ")[1] for call in machine.calls() if " rollout " in call] == [
        "-n kube-system rollout status deployment/autoscaling-scheduler --timeout=180s",
        "-n kube-system rollout status daemonset/autoscaling-agent --timeout=180s",
    ]


SETTINGS = ["autoscaling-scheduler-config", "autoscaling-kube-scheduler-config", "autoscaling-agent"]


def test_existing_settings_are_kept_and_compared(machine: Machine) -> None:
    result = machine.run("--context", "prod", "--only-ours", KNOWN=" ".join(SETTINGS[:2]), DIFFERS="1")
    assert result.returncode == 0, result.stderr
    assert machine.settings() == SETTINGS[2:]
    for name in SETTINGS[:2]:
        assert f"kept settings {name}: they differ as shown; --reset-settings replaces them\n" in result.stdout
    compared = [file for file in machine.seen.glob("*.given") if " diff " in file.with_suffix(".call").read_text()]
    assert sorted(name_of(plain_yaml.load(file.read_text())) for file in compared) == sorted(SETTINGS[:2])


def test_equal_settings_are_not_mentioned(machine: Machine) -> None:
    result = machine.run("--context", "prod", "--only-ours", KNOWN=" ".join(SETTINGS), DIFFERS="0")
    assert (result.returncode, machine.settings()) == (0, [])
    assert "kept settings" not in result.stdout


def test_settings_are_replaced_only_on_request(machine: Machine) -> None:
    result = machine.run("--context", "prod", "--only-ours", "--reset-settings", KNOWN=" ".join(SETTINGS))
    assert (result.returncode, machine.settings()) == (0, SETTINGS)


def test_settings_that_cannot_be_compared_end_the_run(machine: Machine) -> None:
    result = machine.run("--context", "prod", "--only-ours", KNOWN=SETTINGS[0], DIFFERS="2")
    assert result.returncode == 1
    assert result.stderr.endswith(f"The settings {SETTINGS[0]} cannot be compared\n")


@pytest.mark.parametrize("kind", ["deployment", "daemonset"])
def test_another_autoscaler_is_found_before_anything_is_applied(machine: Machine, kind: str) -> None:
    runs = {"OTHER": kind, "OTHER_RUNS": "neonvm-system 1\n" if kind == "deployment" else "neonvm-system \n"}
    result = machine.run("--context", "prod", "--only-ours", **runs)
    assert result.returncode == 1
    assert (
        "is running in namespace neonvm-system: another autoscaler manages the VMs of this cluster.\n" in result.stderr
    )
    assert machine.applied() == []
    assert machine.run("--context", "prod", "--only-ours", "--beside-others", **runs).returncode == 0


def test_another_scheduler_without_replicas_is_no_other(machine: Machine) -> None:
    runs = {"OTHER": "deployment", "OTHER_RUNS": "neonvm-system 0\n"}
    assert machine.run("--context", "prod", "--only-ours", **runs).returncode == 0


def test_object_names_differ_from_the_originals() -> None:
    """Else an apply changes selectors that cannot be changed, and removing theirs removes ours."""
    theirs = {"autoscale-scheduler", "autoscaler-agent", "autoscale-scheduler-config", "autoscaler-agent-config"}
    theirs |= {"autoscale-scheduler-as-kube-scheduler", "autoscale-scheduler-as-volume-scheduler", "autoscaler-view"}
    theirs |= {"scheduler-plugin-config", "autoscale-scheduler-apiserver-auth-config"}
    files = ("deploy/scheduler-deploy.yaml", *(f"deploy/kubernetes/{one}.yaml" for one in OURS))
    ours = {name_of(each) for file in files for each in plain_yaml.load_all((ROOT / file).read_text())}
    assert ours & theirs == set()


OURS = ("agent-daemonset", "agent-sidecar", "expander")


def images(documents: list[dict[str, Any]]) -> list[str]:
    (template,) = (each["spec"]["template"] for each in documents if "template" in each.get("spec", {}))
    return [container["image"] for container in template["spec"]["containers"]]


def test_kube_scheduler_version_follows_the_cluster(machine: Machine) -> None:
    result = machine.run("--context", "prod", "--only-ours", "--registry", "registry.test:5000", "--tag", "v7")
    assert result.returncode == 0, result.stderr
    scheduler, agents = (each for each in machine.manifests() if any("template" in one.get("spec", {}) for one in each))
    ours = "registry.test:5000/autoscale-scheduler:v7"
    assert images(scheduler) == [ours, "registry.k8s.io/kube-scheduler:v1.33.7"]
    assert images(agents) == ["registry.test:5000/autoscaler-agent:v7"]


def test_a_rehearsal_changes_nothing_and_waits_for_nothing(machine: Machine) -> None:
    result = machine.run("--context", "prod", "--only-ours", "--dry-run")
    assert result.returncode == 0, result.stderr
    writes = [call for call in machine.calls() if " get " not in call]
    assert len(writes) == 6
    assert all(" apply --server-side --force-conflicts --dry-run=server -f -" in call for call in writes)
    assert result.stdout.endswith("Dry run of context prod succeeded; nothing was changed\n")


THEIRS = """\
apiVersion: v1
kind: Namespace
metadata:
  name: neonvm-system
---
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata:
  annotations: {a: b}
  name: ippools.vm.neon.tech
---
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata:
  name: virtualmachinemigrations.vm.neon.tech
---
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata:
  annotations: {a: b}
  name: virtualmachines.vm.neon.tech
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingWebhookConfiguration
metadata:
  name: neonvm-webhook
"""


def test_neonvm_is_applied_without_its_two_crds(machine: Machine) -> None:
    machine.has_downloads()
    machine.deployments.joinpath("neonvm.yaml").write_text(THEIRS)
    result = machine.run("--context", "prod")
    assert result.returncode == 0, result.stderr
    applied = machine.applied()
    assert [names[0] for names in applied[:3]] == ["cert-manager", "multus-dev", "whereabouts"]
    assert sorted(applied[3]) == ["virtualmachinemigrations.vm.neon.tech", "virtualmachines.vm.neon.tech"]
    assert applied[4:8] == [
        ["neonvm-runner-image-loader"],
        ["neonvm-system", "ippools.vm.neon.tech", "neonvm-webhook"],
        ["neonvm-controller"],
        ["neonvm-vxlan-controller"],
    ]
    assert len(applied) == 13


def test_missing_download_is_named_first(machine: Machine) -> None:
    result = machine.run("--context", "prod")
    assert result.returncode == 1
    assert result.stderr == (
        "build/deployments/cert-manager.yaml is missing: run scripts/download-deployments.sh first\n"
    )
    assert all(" get " in call for call in machine.calls())


def test_kind_nodes_get_registry_and_plugins(machine: Machine) -> None:
    machine.has_downloads()
    result = machine.run("--kind", "try")
    assert result.returncode == 0, result.stderr
    calls = machine.calls()
    assert "kind create cluster --name try --config deploy/kubernetes/kind.yaml" in calls
    assert "docker network connect kind autoscale-registry" in calls
    given = {file.with_suffix(".call").read_text().strip(): file for file in machine.seen.glob("*.given")}
    for node in ("one", "two"):
        hosts = given[f"docker exec -i {node} cp /dev/stdin /etc/containerd/certs.d/localhost:5001/hosts.toml"]
        assert hosts.read_text() == '[host."http://autoscale-registry:5000"]\n'
        with tarfile.open(given[f"docker exec -i {node} tar -xf - -C /opt/cni/bin"]) as plugins:
            assert [member for member in plugins.getnames() if member != "."] == ["./bridge"]
    assert all(call.startswith("kubectl --context kind-try ") for call in calls if call.startswith("kubectl"))


def test_without_a_registry_no_kind_cluster_is_made(machine: Machine) -> None:
    result = machine.run("--kind", "try", missing="autoscale-registry")
    assert result.returncode == 1
    assert "run vm_image/start-local-registry.sh first" in result.stderr
    assert machine.calls() == ["docker inspect autoscale-registry"]


def test_two_clusters_cannot_be_meant(machine: Machine) -> None:
    assert machine.run("--kind", "a", "--context", "b").returncode == 2
    assert machine.calls() == []


def test_rendered_crds_are_up_to_date(machine: Machine) -> None:
    script = str(machine.folder / "scripts/render-neonvm.sh")
    assert subprocess.run([script, "--check"], timeout=30, check=False).returncode == 0
    machine.folder.joinpath("deploy/kubernetes/crds/virtualmachines.yaml").write_text("kind: Changed\n")
    drifted = subprocess.run([script, "--check"], capture_output=True, text=True, timeout=30, check=False)
    assert (drifted.returncode, drifted.stderr) == (1, "deploy/neonvm.yaml is out of date: run make manifests\n")
    assert subprocess.run([script], timeout=30, check=False).returncode == 0
    assert subprocess.run([script, "--check"], timeout=30, check=False).returncode == 0
