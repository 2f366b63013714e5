"""``autoscale check`` on a real Kubernetes: an installation in order, and with one fault after another."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path
from uuid import uuid4

import pytest

from deploy.kube.client import client_from_kubeconfig
from deploy.kube.kubectl import Kubectl
from deploy.local.kubernetes.machine.installation import load_image
from deploy.local.kubernetes.plan.installation_plan import kube_scheduler_image
from deploy.local.kubernetes.programs.images import ProgramImage, write_image
from protocol.runtime.clock import SystemClock
from scripts.autoscale.check.finding import EXIT_CODES, Level
from scripts.autoscale.check.gathering.gather import Gathering
from scripts.autoscale.check.table import evaluate
from tests.deploy.manifests import ROOT
from tests.kubernetes.check.faults import FAULTS, SYSTEM, Fault, Installation, Outcome
from tests.kubernetes.real_kubernetes import PATIENCE, NotYetError, eventually, kubectl_program
from tests.kubernetes.vms import following

pytestmark = pytest.mark.kubernetes

LOOKS = "api-looks"


class ClockAhead(SystemClock):
    """A machine whose clock is ten minutes ahead."""

    def wall(self) -> float:
        return super().wall() + 600.0


def until_in_order(installation: Installation) -> None:
    said = list[Outcome]()

    def look() -> bool:
        said.append(installation.check())
        return said[-1].code == 0

    try:
        eventually(look, "everything is in order", PATIENCE)
    except NotYetError as error:
        raise AssertionError(f"{error}: {said[-1].wrong}") from None


def test_installation_passes_all_checks(installation: Installation) -> None:
    until_in_order(installation)


@pytest.mark.parametrize("fault", FAULTS, ids=str)
def test_fault_is_reported_by_one_check(installation: Installation, fault: Fault) -> None:
    fault.make(installation)
    try:
        found = list[Outcome]()

        def named() -> bool:
            found.append(installation.check())
            level, _ = found[-1].wrong.get(fault.check, (None, ""))
            # One node after the other loses its devices; an API server answers for no kind that was just changed.
            return level is fault.level and LOOKS not in found[-1].wrong

        eventually(named, f"{fault.check} is named", 45.0)
    finally:
        fault.mend(installation)
        if not fault.leaves_another:
            until_in_order(installation)
    outcome = found[-1]
    assert outcome.wrong.keys() == {fault.check}, outcome.wrong
    level, said = outcome.wrong[fault.check]
    print(f"{level.name.lower()} {fault.check}: {said}")
    assert (level, fault.said in said, outcome.code) == (fault.level, True, EXIT_CODES[fault.level]), said


def test_too_new_kube_scheduler_is_reported(installation: Installation, tmp_path: Path) -> None:
    archive, cluster = tmp_path / "newer.tar", installation.cluster
    write_image(
        ProgramImage(kube_scheduler_image("v1.99.0"), kubectl_program().parent / "kube-scheduler"), archive, print
    )
    asyncio.run(load_image(cluster.folder / "kubernetes" / "nodes", archive))
    installation.kubectl(
        "set", "image", "deployment/autoscaling-scheduler", f"kube-scheduler={kube_scheduler_image('v1.99.0')}"
    )
    installation.rolled_out("deployment/autoscaling-scheduler")
    found = installation.check()
    installation.kubectl("rollout", "undo", "deployment/autoscaling-scheduler")
    installation.rolled_out("deployment/autoscaling-scheduler")
    assert found.wrong.keys() == {"kube-scheduler-version"}, found.wrong
    assert "must not be newer than the API server" in found.said


def test_pod_requests_line_reports_the_active_setting(installation: Installation) -> None:
    with following(installation.cluster):
        until_requests(installation, "VM pod requests follow what is reserved")
    until_requests(installation, "VM pod requests stay at their initial values: other schedulers do not see VMs grow")


def until_requests(installation: Installation, expected: str) -> None:
    """The line comes to say so; until the scheduler has the setting it is the only one with anything to look at."""
    cluster, selector = installation.cluster, "--selector=app.kubernetes.io/name=autoscaling-scheduler"
    # A kubelet looks after a pod that has changed at once, and otherwise after a minute or two.
    cluster.kubectl("annotate", "pods", f"--namespace={SYSTEM}", selector, "--overwrite", f"test={uuid4()}")

    def said() -> bool:
        outcome = installation.check()
        assert outcome.wrong.keys() <= {"pod-requests"}, outcome.wrong
        lines = {each["check"]: each["said"] for each in json.loads(outcome.said)["checks"]}
        return bool(lines["pod-requests"] == expected)

    eventually(said, expected, 2 * PATIENCE)


async def test_wrong_local_clock_is_reported_once(installation: Installation) -> None:
    path = installation.cluster.kubeconfig
    async with client_from_kubeconfig(path) as client:
        facts = await Gathering(client, Kubectl(["kubectl", "--kubeconfig", str(path)]), ClockAhead()).facts(
            before=False
        )
    wrong = {each.check.id: each.message for each in evaluate(facts, before=False) if each.level >= Level.WARNING}
    assert wrong.keys() == {"clock-here"}
    assert wrong["clock-here"].startswith("this machine's clock is 600 s ahead")


def test_rejected_credentials_are_explained(installation: Installation, tmp_path: Path) -> None:
    text = installation.cluster.kubeconfig.read_text()
    other = tmp_path / "config"
    other.write_text("\n".join("    token: nonsense" if "token:" in each else each for each in text.splitlines()))
    done = as_people_do(installation, "autoscale", "check", "--output=short", f"--kubeconfig={other}")
    said = "× api-answers: the API server rejected these credentials (401); they may have expired"
    assert (done.returncode, done.stdout.splitlines()[0]) == (2, said), done.stdout + done.stderr


def test_kubectl_runs_it_as_its_plugin(installation: Installation, tmp_path: Path) -> None:
    plugin = tmp_path / "kubectl-autoscaling"
    plugin.write_text(f"#!{sys.executable}\nfrom scripts.autoscale.main import plugin\nplugin()\n")
    plugin.chmod(0o755)
    done = as_people_do(installation, "kubectl", "autoscaling", "check", "--output=short", path=tmp_path)
    assert (done.returncode, "0 failed, 0 warnings" in done.stdout) == (0, True), done.stdout + done.stderr


def as_people_do(on: Installation, *command: str, path: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Runs a command with kubectl and what is in ``path``, as in the shell of a person."""
    if command[0] == "autoscale":
        command = (sys.executable, "-m", "scripts.autoscale.main", *command[1:])
    folders = [*([] if path is None else [str(path)]), str(kubectl_program().parent), os.environ["PATH"]]
    settings = {"PATH": ":".join(folders), "KUBECONFIG": str(on.cluster.kubeconfig), "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        command,
        env={**on.cluster.environment, **settings},
        capture_output=True,
        text=True,
        check=False,
        timeout=60.0,
    )


def test_all_checks_pass_afterwards(installation: Installation) -> None:
    until_in_order(installation)
