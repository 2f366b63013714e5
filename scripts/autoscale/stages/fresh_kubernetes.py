"""A temporary real Kubernetes with the autoscaler on it: made from scratch, removed at the end."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from rich.console import Console

from deploy.local.cluster.folder import ClusterFolder
from deploy.local.cluster.progress import Step, StepFailedError, StepState
from deploy.local.cluster.spec import ClusterSpec
from deploy.local.kubernetes.machine.image_loading import ImageLoadError, load_image
from deploy.local.kubernetes.machine.installation import (
    InstallationError,
    apply_manifests,
    built_parts,
    kubectl,
    rolled_out,
)
from deploy.local.kubernetes.programs.ensure import NoProgramsError
from deploy.local.kubernetes.programs.own_images import InstallationParts
from protocol.runtime.clock import Clock
from scripts.autoscale.site import Site
from scripts.autoscale.stages.fresh_cluster import launched, watched
from scripts.autoscale.steps import StepView

_ARCHIVES: Final = "images"


@dataclass(frozen=True, slots=True)
class Installed:
    """A cluster on which all runs that VMs need."""

    site: Site
    folder: ClusterFolder
    parts: InstallationParts

    async def kubectl(self, *arguments: str) -> str:
        """Output of kubectl. Raises ``InstallationError``."""
        return await kubectl(self.folder.kubeconfig, self.parts, *arguments)


@asynccontextmanager
async def fresh_kubernetes(name: str, spec: ClusterSpec, console: Console, clock: Clock) -> AsyncIterator[Installed]:
    """Builds images while the cluster comes up; then loads and applies all, and waits until it runs.

    Its logs stay, and the disks of its nodes do not. Raises as ``fresh_cluster``.
    """
    folder = ClusterFolder.of(name)
    async with AsyncExitStack() as stack:
        # Pushed first, so that it runs last: the disks are in use until the cluster has ended.
        stack.push_async_callback(asyncio.to_thread, _remove_disks, folder)
        cluster = await stack.enter_async_context(launched(name, spec))
        with StepView(console) as view:
            # Building images and bringing the cluster up take minutes each, and neither needs the other.
            async with asyncio.TaskGroup() as tasks:
                building = tasks.create_task(_build(spec.kubernetes, folder.root / _ARCHIVES, view))
                tasks.create_task(cluster.follow(view.show))
        parts = building.result()
        async with watched(name, cluster) as site:
            with StepView(console) as view:
                await _install(Installed(site, folder, parts), view, clock)
            yield Installed(site, folder, parts)


def _remove_disks(folder: ClusterFolder) -> None:
    """Remove a cluster's disks, gigabytes."""
    # A cluster of that name may have run before; then nothing was launched, and its disks are its own.
    if not folder.runs():
        for disk_folder in (folder.real, folder.root / _ARCHIVES):
            shutil.rmtree(disk_folder, ignore_errors=True)


async def _build(minor: str, archives: Path, view: StepView) -> InstallationParts:
    told = ""

    def named(line: str) -> None:
        nonlocal told
        name = line.partition(":")[0]
        # Each image has many lines of progress; the step shows only the name of the current one.
        if name != told:
            told = name
            note(name)

    with _step("images", view) as note:
        return await built_parts(minor, archives, named)


async def _install(found: Installed, view: StepView, clock: Clock) -> None:
    with _step("images on the nodes", view):
        for archive in map(Path, found.parts.archives):
            await load_image(found.folder.nodes, archive)
            # An archive takes hundreds of megabytes, and the nodes have it now.
            await asyncio.to_thread(archive.unlink)
    with _step("autoscaler", view) as note:
        await apply_manifests(found.folder.kubeconfig, found.parts)
        await rolled_out(found.site.client, clock, note)


@contextmanager
def _step(name: str, view: StepView) -> Iterator[partial[None]]:
    """Shows a step from its beginning to its end; gives what takes notes on it. Raises ``StepFailedError``."""

    def say(state: StepState, text: str = "") -> None:
        view.show(Step(name, state, text))

    say(StepState.BEGUN)
    try:
        yield partial(say, StepState.NOTE)
    except (NoProgramsError, ImageLoadError, InstallationError, OSError) as error:
        raise StepFailedError(f"{name}: {error}") from error
    say(StepState.DONE)
