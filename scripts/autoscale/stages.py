"""Temporary clusters, local or real Kubernetes, which are removed afterwards; and the stage of a demonstration."""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final, Self

from rich.console import Console
from rich.markup import escape
from rich.status import Status

from deploy.kube.informer import Informer
from deploy.local.cluster.control import ask_cluster
from deploy.local.cluster.folder import ClusterFolder
from deploy.local.cluster.launch import LaunchedCluster, launch, log_tail
from deploy.local.cluster.progress import Step, StepFailedError, StepState
from deploy.local.cluster.spec import ClusterSpec
from deploy.local.kubernetes.machine import installation
from deploy.local.kubernetes.plan.installation_plan import FOR_PODS, FOR_VMS, Installation, startup_failure
from deploy.local.kubernetes.programs.ensure import NoProgramsError
from deploy.local.kubernetes.programs.images import InstallationParts
from protocol.kubernetes.conditions import condition_of
from protocol.kubernetes.objects import Json, text
from protocol.kubernetes.resources import PODS
from protocol.runtime.background_jobs import background_jobs
from protocol.runtime.clock import Clock
from scripts.autoscale.clusters import ClusterFlags, find_cluster
from scripts.autoscale.demonstration.waiting import fail_with_first
from scripts.autoscale.site import Site, SiteError, open_site


class StepView:
    """A context manager that shows the progress of steps, of which several may run at a time."""

    def __init__(self, console: Console) -> None:
        self._console = console
        # Without a terminal there is no spinner, and notes are printed as lines.
        self._status: Status | None = console.status("starting") if console.is_terminal else None
        self._since: dict[str, float] = {}

    def __enter__(self) -> Self:
        if self._status is not None:
            self._status.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._status is not None:
            self._status.stop()

    def show(self, step: Step) -> None:
        """Shows a change of a step."""
        match step.state:
            case StepState.BEGUN:
                self._since[step.name] = time.monotonic()
                self._spin(f"{step.name} …")
            case StepState.NOTE:
                self._spin(f"{step.name}: {step.text}")
                if self._status is None:
                    self._console.print(f"  … {step.name}: {escape(step.text)}", soft_wrap=True)
            case StepState.DONE:
                # A step may end without having begun.
                duration = time.monotonic() - self._since.pop(step.name, time.monotonic())
                self._console.print(
                    f"  [green]✓[/green] {step.name} [dim]{duration:.1f} s[/dim]  {escape(step.text)}", soft_wrap=True
                )
            case StepState.READY | StepState.FAILED:
                return

    def _spin(self, text: str) -> None:
        if self._status is not None:
            self._status.update(escape(text))


_MIN_FREE_SPACE: Final = 1024**2
"""Bytes. A cluster without VMs fails to start with less."""


def show_failure(console: Console, error: StepFailedError) -> None:
    """Prints the failure, the last lines of the failed part's log, and its path."""
    console.print(f"[bold red]✗ {escape(str(error))}[/bold red]", soft_wrap=True)
    if tail := log_tail(error.log) if error.log else "":
        console.print(f"[dim]the end of {error.log}:[/dim]", soft_wrap=True)
        console.print(escape(tail), soft_wrap=True)
    # On a full disk the log is empty.
    folder = Path(error.log).parent
    if error.log and folder.is_dir() and shutil.disk_usage(folder)[2] < _MIN_FREE_SPACE:
        console.print(f"no space left on the disk of {escape(str(folder))}", soft_wrap=True)


@asynccontextmanager
async def fresh_cluster(name: str, spec: ClusterSpec, console: Console) -> AsyncIterator[Site]:
    """Runs an empty cluster within the context; its logs stay until the next one of that name starts.

    Raises ``AlreadyRunningError`` and ``StepFailedError``. If the cluster ends early, the block is cancelled and
    raises a group with a ``SiteError``.
    """
    async with launched(name, spec) as cluster:
        with StepView(console) as view:
            await cluster.follow(view.show)
        async with watched(name, cluster) as site:
            yield site


@asynccontextmanager
async def launched(name: str, spec: ClusterSpec) -> AsyncIterator[LaunchedCluster]:
    """Launches a cluster, and ends it after the context. Raises ``AlreadyRunningError``."""
    # `fresh` removes what an earlier cluster of that name left.
    cluster = await launch(ClusterFolder.of(name), spec, attached=True, fresh=True)
    try:
        yield cluster
    finally:
        await cluster.end()


@asynccontextmanager
async def watched(name: str, cluster: LaunchedCluster) -> AsyncIterator[Site]:
    """Opens access to a running cluster. If it ends, the block is cancelled and raises a group with a ``SiteError``."""
    folder = ClusterFolder.of(name)
    async with open_site(find_cluster(ClusterFlags(name))) as site, background_jobs(_fail_at_end(cluster, folder)):
        yield site


async def _fail_at_end(cluster: LaunchedCluster, folder: ClusterFolder) -> None:
    code = await cluster.wait()
    raise SiteError(f"the cluster's process has ended with exit code {code}; its log: {folder.log('cluster')}")


_ARCHIVES: Final = "images"


@dataclass(frozen=True, slots=True)
class Installed:
    """A real Kubernetes with the autoscaler installed."""

    site: Site
    folder: ClusterFolder
    parts: InstallationParts
    installation: Installation = FOR_VMS

    async def kubectl(self, *arguments: str) -> str:
        """Output of kubectl. Raises ``InstallationError``."""
        return await installation.kubectl(self.folder.kubeconfig, self.parts, *arguments)


@asynccontextmanager
async def fresh_kubernetes(
    name: str, spec: ClusterSpec, console: Console, clock: Clock, what: Installation
) -> AsyncIterator[Installed]:
    """Builds images while the cluster starts; then installs the autoscaler, and waits until it runs.

    The logs stay; the disks of the nodes are removed. Raises like ``fresh_cluster``.
    """
    folder = ClusterFolder.of(name)
    async with AsyncExitStack() as stack:
        # Pushed first, so that it runs last, when the disks are no longer in use.
        stack.push_async_callback(asyncio.to_thread, _remove_disks, folder)
        cluster = await stack.enter_async_context(launched(name, spec))
        with StepView(console) as view:
            # Both take minutes, and neither needs the other.
            async with asyncio.TaskGroup() as tasks:
                building = tasks.create_task(_build(spec.kubernetes, folder.root / _ARCHIVES, view, what))
                tasks.create_task(cluster.follow(view.show))
        parts = building.result()
        async with watched(name, cluster) as site:
            installed = Installed(site, folder, parts, what)
            with StepView(console) as view:
                await _install(installed, view, clock)
            yield installed


def _remove_disks(folder: ClusterFolder) -> None:
    """Removes a cluster's disks, which take gigabytes."""
    # If another cluster of that name is running, nothing was launched and the disks belong to it.
    if not folder.is_running():
        for disk_folder in (folder.real, folder.root / _ARCHIVES):
            shutil.rmtree(disk_folder, ignore_errors=True)


async def _build(minor: str, archives: Path, view: StepView, what: Installation) -> InstallationParts:
    current = ""

    def show_image(line: str) -> None:
        nonlocal current
        name = line.partition(":")[0]
        # Each image has many lines of progress; the step shows only the name of the current one.
        if name != current:
            current = name
            note(name)

    with _step("images", view) as note:
        return await installation.build_images(minor, archives, show_image, what)


async def _install(cluster: Installed, view: StepView, clock: Clock) -> None:
    with _step("images on the nodes", view):
        for archive in map(Path, cluster.parts.archives):
            await installation.load_image(cluster.folder.nodes, archive)
            # An archive takes hundreds of megabytes, and the nodes have it now.
            await asyncio.to_thread(archive.unlink)
    with _step("autoscaler", view) as note:
        await installation.apply_manifests(cluster.folder.kubeconfig, cluster.parts, cluster.installation)
        await installation.wait_rolled_out(cluster.site.client, clock, note, cluster.installation)


@contextmanager
def _step(name: str, view: StepView) -> Iterator[partial[None]]:
    """Shows a step's begin and end; yields a function that shows notes on it. Raises ``StepFailedError``."""

    def show(state: StepState, text: str = "") -> None:
        view.show(Step(name, state, text))

    show(StepState.BEGUN)
    try:
        yield partial(show, StepState.NOTE)
    except (NoProgramsError, installation.ImageLoadError, installation.InstallationError, OSError) as error:
        raise StepFailedError(f"{name}: {error}") from error
    show(StepState.DONE)


@dataclass(frozen=True, slots=True)
class DemoStage:
    """A demonstration's cluster, described in words; ``installed`` is None for the embedded cluster."""

    site: Site
    guests: str
    network: str
    clock: Clock
    installed: Installed | None = None

    def guests_of(self, vm: Json) -> str:
        """``guests``, with the reason why the guest is emulated or not."""
        # The embedded cluster has the reason in `guests`.
        why = {} if self.installed is None else condition_of(vm, "Accelerated")
        return f"{self.guests} ({text(why, 'message')})" if why else self.guests

    async def watch(self) -> None:
        """Watches until cancelled. Raises ``SiteError`` once a pod can no longer start."""
        # An embedded cluster's process ends on its own if a part fails.
        if self.installed is not None:
            await fail_with_first(Informer(self.site.client, PODS, self.clock), lambda pod: startup_failure([pod]))

    async def final_summary(self) -> str:
        """kubectl's table of the objects at the end; empty for the embedded cluster, for which there is ``top``."""
        if self.installed is None:
            return ""
        kinds = "neonvm,pods" if self.installed.installation is FOR_VMS else "pods"
        command = ("get", kinds, "--output=wide")
        try:
            return f"$ kubectl {' '.join(command)}\n{await self.installed.kubectl(*command)}"
        except installation.InstallationError as error:
            # The summary is an extra: its failure must not hide the outcome.
            return str(error)


@asynccontextmanager
async def fresh_stage(
    name: str, spec: ClusterSpec, console: Console, clock: Clock, *, pods: bool = False
) -> AsyncIterator[DemoStage]:
    """Runs a new cluster for VMs, or for databases in ``pods``. Raises like ``fresh_cluster``."""
    folder = ClusterFolder.of(name)
    if not spec.kubernetes:
        async with fresh_cluster(name, spec, console) as site:
            cluster_status = await ask_cluster(folder, "status")
            yield DemoStage(site, cluster_status.guests, cluster_status.network, clock)
        return
    async with fresh_kubernetes(name, spec, console, clock, FOR_PODS if pods else FOR_VMS) as installed:
        cluster_status = await ask_cluster(folder, "status")
        guests = cluster_status.guests if pods else f"QEMU in pods of {cluster_status.guests}"
        yield DemoStage(installed.site, guests, cluster_status.network, clock, installed)
