"""The kubelets of all local nodes, in one process."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable, Mapping
from typing import Final

from deploy.kube.informer import Informer, ObjectChange
from deploy.local.kubelet.pod_status import failed_status, running_status
from deploy.local.kubelet.reporting import write_status
from deploy.local.kubelet.sandbox import NodeDependencies, Sandbox, vm_folder
from deploy.neonvm.dependencies import GuestHost, HostedGuest
from deploy.neonvm.ports import TransferError, TransferFault
from deploy.neonvm.transfer_terms import TransferInfo, TransferLimits
from protocol.kubernetes.api import Tolerating
from protocol.kubernetes.objects import (
    Json,
    has_finished,
    is_terminating,
    labels_of,
    name_of,
    node_of,
    pod_phase,
    uid_of,
)
from protocol.kubernetes.refusals import RefusalKind
from protocol.kubernetes.resources import PODS
from protocol.kubernetes.timestamps import timestamp
from protocol.messages import ObjectName
from protocol.names import LABEL_VM_NAME
from protocol.runtime.kubernetes.work_queue import WorkQueue
from protocol.virtual_machine import InvalidObjectError
from protocol.vm_arguments import ArgumentsError

_WORKERS: Final = 4


class Kubelet(GuestHost):
    """Runs the pods on ``nodes``."""

    def __init__(self, nodes: frozenset[str], pods: Informer, vms: Informer, deps: NodeDependencies) -> None:
        self._nodes = nodes
        self._pods = pods
        self._vms = vms
        self._deps = deps
        self._queue = WorkQueue(deps.clock)
        self._sandboxes: dict[ObjectName, tuple[Sandbox, asyncio.Task[None]]] = {}
        self._stopped: set[str] = set()  # nodes whose kubelet is stopped; their pods keep running
        self._ended: dict[str, Json] = {}  # final statuses by pod uid, until the cache has them
        pods.listen(self._pod_changed)

    @property
    def sandboxes(self) -> Mapping[ObjectName, Sandbox]:
        """The running sandboxes by pod."""
        return {name: sandbox for name, (sandbox, _) in self._sandboxes.items()}

    def guest(self, pod: Json | None) -> HostedGuest:
        """The guest of ``pod``, if it runs here."""
        running = self._sandboxes.get(name_of(pod or {}))
        # A later pod may have the same name.
        if running is None or running[0].uid != uid_of(pod or {}):
            return HostedGuest()
        return HostedGuest(running[0].guest, running[0].role, moves_asleep=True)

    async def send(
        self, source: ObjectName, target: ObjectName, limits: TransferLimits, progress: Callable[[TransferInfo], None]
    ) -> TransferInfo:
        """Migrate the guest of one pod into another. Raises, and can be cancelled, like ``Guest.send``."""
        sandboxes = self.sandboxes
        if source not in sandboxes or target not in sandboxes:
            raise TransferError(TransferFault.REFUSED, "the source pod or the target pod is not running")
        return await sandboxes[source].send(sandboxes[target], limits, progress)

    def stop_node(self, node: str) -> None:
        """Stop the kubelet of ``node``: guests keep running, but no pod is started, stopped or reported."""
        self._stopped.add(node)

    def start_node(self, node: str) -> None:
        """Start the kubelet of ``node`` again."""
        self._stopped.discard(node)
        # `_sync` ignored changes while it was stopped.
        for name, pod in self._pods.objects.items():
            if node_of(pod) == node:
                self._queue.add(name)

    async def vm_address(self, vm: Json) -> str:
        """The VM's IP on the flat network."""
        return await self._deps.network.vm_address(name_of(vm))

    async def release_vm(self, vm: ObjectName, uid: str) -> None:
        """Release the VM's IP and delete its disk."""
        await self._deps.network.release_vm(vm)
        # Deleting gigabytes would block the event loop.
        await asyncio.to_thread(shutil.rmtree, vm_folder(self._deps.state, vm, uid), ignore_errors=True)

    async def run(self) -> None:
        """Run until cancelled, then end all pods."""
        await self._pods.synced.wait()
        await self._vms.synced.wait()
        # The workers start tasks in `pod_tasks`, so it must outlive them.
        async with asyncio.TaskGroup() as pod_tasks, asyncio.TaskGroup() as workers:
            for _ in range(_WORKERS):
                worker = self._queue.serve(lambda name: self._sync(name, pod_tasks))
                workers.create_task(worker)

    async def _sync(self, name: ObjectName, pod_tasks: asyncio.TaskGroup) -> None:
        pod = self._pods.get(name)
        running = self._sandboxes.get(name)
        if pod is not None and node_of(pod) in self._stopped:
            return
        # End the pod before confirming its deletion: the scheduler reuses its room as soon as the object is gone.
        if running is not None and (pod is None or uid_of(pod) != running[0].uid or is_terminating(pod)):
            await self._end(name)
        if pod is None or node_of(pod) not in self._nodes:
            return
        if is_terminating(pod):
            await self._confirm(pod)
        elif has_finished(pod) or name in self._sandboxes:
            return
        # The pod has ended, but its cached object is older: report it again instead of starting it again.
        elif (ended := self._ended.get(uid_of(pod))) is not None:
            await write_status(self._deps.client, pod, ended)
        else:
            await self._begin(name, pod, pod_tasks)

    async def _begin(self, name: ObjectName, pod: Json, pod_tasks: asyncio.TaskGroup) -> None:
        now = timestamp(self._deps.clock.wall())
        vm_name = labels_of(pod).get(LABEL_VM_NAME)
        # Other pods only reserve resources: report them as running, but start nothing.
        if vm_name is None:
            if pod_phase(pod) != "Running":
                await write_status(self._deps.client, pod, running_status(pod, "", now))
        # An earlier process started it, and its guests ended with it.
        elif pod_phase(pod) == "Running":
            lost = "the guest was lost: the cluster's process was restarted"
            await write_status(self._deps.client, pod, failed_status(lost, now))
        else:
            await self._begin_vm(name, pod, ObjectName(name.namespace, vm_name), pod_tasks)

    async def _begin_vm(self, name: ObjectName, pod: Json, vm: ObjectName, pod_tasks: asyncio.TaskGroup) -> None:
        vm_object = self._vms.get(vm)
        try:
            # `Sandbox` rejects a missing VM with an error for the pod's status.
            sandbox = Sandbox(pod, vm_object or {}, self._deps)
        except (ArgumentsError, InvalidObjectError) as error:
            failed = failed_status(f"{vm}: {error}", timestamp(self._deps.clock.wall()))
            await write_status(self._deps.client, pod, failed)
            return
        self._sandboxes[name] = sandbox, pod_tasks.create_task(self._run_sandbox(name, sandbox))

    async def _run_sandbox(self, name: ObjectName, sandbox: Sandbox) -> None:
        try:
            ended = await sandbox.run()
            if (pod := self._pods.get(name)) is not None and uid_of(pod) == sandbox.uid and not has_finished(pod):
                # Prevents another start until the cache has the final status.
                self._ended[sandbox.uid] = ended
        finally:
            # A new pod with the same name may have replaced it.
            if (running := self._sandboxes.get(name)) is not None and running[0] is sandbox:
                del self._sandboxes[name]
            self._queue.add(name)

    async def _end(self, name: ObjectName) -> None:
        _, task = self._sandboxes[name]
        task.cancel()
        # Unlike `await task`, `wait` does not raise the task's exception.
        await asyncio.wait((task,))

    async def _confirm(self, pod: Json) -> None:
        with Tolerating(RefusalKind.NOT_FOUND):
            # Kubelets confirm deletions like this: grace period 0, with the uid as precondition.
            await self._deps.client.delete(PODS, name_of(pod), uid_of(pod), grace=0)

    def _pod_changed(self, change: ObjectChange) -> None:
        old, new = change.before, change.after
        if old is not None and (new is None or uid_of(new) != uid_of(old) or has_finished(new)):
            self._ended.pop(uid_of(old), None)
        if any(version is not None and node_of(version) in self._nodes for version in (old, new)):
            self._queue.add(change.name)
