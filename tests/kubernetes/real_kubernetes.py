"""A real Kubernetes in a test, used as people use it: through ``autoscale local`` and kubectl."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NoReturn

import pytest

from deploy.kube.client import client_from_kubeconfig
from deploy.local.kubernetes.machine.survey import survey
from deploy.local.kubernetes.plan.cluster_plan import BUSYBOX_IMAGE
from deploy.local.kubernetes.plan.requirements import missing
from deploy.local.kubernetes.programs.build import Builder
from deploy.local.kubernetes.programs.toolchain import find_go
from deploy.local.kubernetes.programs.versions import SUPPORTED, kubernetes_set
from protocol.messages import ObjectName
from tests.kubernetes.looks import looks_at, question_in

VERSION: Final = os.environ.get("AUTOSCALE_KUBERNETES", SUPPORTED[0])
"""The minor version that is tested."""

PATIENCE: Final = 240.0
"""Seconds. Waits of 90 broke off while a machine was overrun for minutes: a load of 50 on two cores."""
_BUILD_SECONDS: Final = 45 * 60.0
_DOWN_SECONDS: Final = 120.0
"""With all that we install on it a cluster took 42 s to end at a load of 25, and 11 to 17 s with less."""


class NotYetError(Exception):
    """The awaited state was not reached in time."""


def refuse_unless_possible(home: Path) -> None:
    """Ends the test where a real Kubernetes cannot run, as ``cannot_run`` does."""
    lacks = asyncio.run(_lacks(home))
    if lacks:
        cannot_run(f"a real Kubernetes cannot run here: {'; '.join(lacks)}")


def cannot_run(reason: str) -> NoReturn:
    """Fails the test for that reason; where ``AUTOSCALE_WHERE_POSSIBLE`` is set, skips it."""
    told = pytest.skip if os.environ.get("AUTOSCALE_WHERE_POSSIBLE") else pytest.fail
    told(reason)


async def _lacks(home: Path) -> list[str]:
    return missing(await survey(home))


@dataclass(frozen=True, slots=True)
class RealKubernetes:
    """A cluster by its name, in a folder of the test's own."""

    name: str
    home: Path

    @property
    def folder(self) -> Path:
        """The cluster's folder."""
        return self.home / self.name

    @property
    def kubeconfig(self) -> Path:
        """People's."""
        return self.folder / "kubeconfig"

    def autoscale(self, *arguments: str, seconds: float = _BUILD_SECONDS) -> subprocess.CompletedProcess[str]:
        """Runs ``autoscale local``, and waits until it has ended."""
        action, *more = arguments
        return subprocess.run(
            self.command(action, *more),
            env=self.environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=seconds,
        )

    def command(self, action: str, *more: str) -> list[str]:
        """The command line of ``autoscale local ACTION``."""
        return [sys.executable, "-m", "scripts.autoscale.main", "local", action, *more, "--name", self.name]

    @property
    def environment(self) -> dict[str, str]:
        """Ours, with the folder of this test's clusters."""
        return {**os.environ, "AUTOSCALE_HOME": str(self.home)}

    def up(self, *more: str) -> None:
        """Start the cluster. Raises ``AssertionError`` with its output."""
        done = self.autoscale("up", "--kubernetes", "--kubernetes-version", VERSION, "--detach", *more)
        assert done.returncode == 0, done.stdout + done.stderr

    def down(self) -> None:
        """Ends the cluster."""
        done = self.autoscale("down", seconds=_DOWN_SECONDS)
        assert done.returncode == 0, done.stdout + done.stderr

    def kubectl(self, *arguments: str, typed: str = "", kubeconfig: Path | None = None) -> str:
        """Run kubectl and return its output. Raises ``AssertionError`` with its error output."""
        done = self.try_kubectl(*arguments, typed=typed, kubeconfig=kubeconfig)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def try_kubectl(
        self, *arguments: str, typed: str = "", kubeconfig: Path | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Runs kubectl, which may fail."""
        return subprocess.run(
            self.kubectl_command(*arguments, kubeconfig=kubeconfig),
            input=typed,
            capture_output=True,
            text=True,
            check=False,
            timeout=PATIENCE,
        )

    def kubectl_command(self, *arguments: str, kubeconfig: Path | None = None) -> list[str]:
        """The command line of kubectl, of the version that was built."""
        return [str(kubectl_program()), f"--kubeconfig={kubeconfig or self.kubeconfig}", *arguments]

    def get(self, *arguments: str) -> Any:
        """An object, or a list of them."""
        if question := question_in(arguments):
            return looks_at(self.kubeconfig).look(question)
        return json.loads(self.kubectl("get", *arguments, "--output=json"))

    def read(self, path: str) -> Any:
        """The JSON at ``path`` of the API server, redirects included."""
        return looks_at(self.kubeconfig).read(path)

    def explained(self, pod: str, port: int, path: str) -> Any:
        """The explanation of a program in the pod ``namespace/name``, by port-forward."""
        namespace, _, name = pod.partition("/")

        async def asked() -> bytes:
            async with client_from_kubeconfig(self.kubeconfig) as client:
                return await client.pod_get(ObjectName(namespace, name), port, path)

        return json.loads(asyncio.run(asked()))

    def apply(self, *objects: dict[str, Any]) -> None:
        """Creates or changes objects."""
        self.kubectl("apply", "--filename=-", typed=json.dumps({"apiVersion": "v1", "kind": "List", "items": objects}))

    def wait(self, condition: str, *what: str, namespace: str = "default") -> None:
        """Returns once the objects have the condition."""
        self.kubectl("wait", f"--for={condition}", f"--timeout={PATIENCE - 10:.0f}s", f"--namespace={namespace}", *what)

    def look_anew(self, namespace: str, name: str) -> None:
        """Make kubelets sync the pods of a program: otherwise mounted files are updated only after a minute or two."""
        selector = f"--selector=app.kubernetes.io/name={name}"
        mark = f"autoscale.test/looked-at={time.time_ns()}"
        self.kubectl("annotate", "pods", f"--namespace={namespace}", selector, "--overwrite", mark)


def kubectl_program() -> Path:
    """The kubectl that was built."""
    folder = Builder.default(find_go()).cached(kubernetes_set(VERSION))
    assert folder is not None, "the cluster has built it"
    return folder / "kubectl"


@contextmanager
def running(cluster: RealKubernetes, *more: str) -> Iterator[RealKubernetes]:
    """The cluster, up, and removed afterwards."""
    try:
        cluster.up(*more)
        yield cluster
    finally:
        cluster.down()


def eventually(look: Callable[[], bool], what: str, seconds: float = PATIENCE, every: float = 0.2) -> None:
    """Wait until ``look``, which is called repeatedly, returns True. Raises ``NotYetError``."""
    deadline = time.monotonic() + seconds
    while not look():
        if time.monotonic() > deadline:
            raise NotYetError(f"{what}: not within {seconds:g} s")
        time.sleep(every)


def busybox_pod(name: str, *command: str, node: str = "", **container: Any) -> dict[str, Any]:
    """A pod of one container that runs a command of busybox; ``container`` adds to it."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": {"app": name}},
        "spec": {
            "terminationGracePeriodSeconds": 0,
            **({"nodeSelector": {"kubernetes.io/hostname": node}} if node else {}),
            "containers": [
                {
                    "name": "main",
                    "image": BUSYBOX_IMAGE,
                    "imagePullPolicy": "Never",
                    "command": list(command),
                    **container,
                }
            ],
        },
    }
