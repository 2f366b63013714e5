"""An index of an informer's objects by VM."""

from __future__ import annotations

from collections.abc import Callable

from deploy.kube.informer import Informer, ObjectChange
from protocol.kubernetes.objects import Json, name_of, text
from protocol.messages import ObjectName


class VmIndex:
    """Indexes the objects of ``informer`` by VM. ``vm_of`` returns the name of an object's VM, empty if it has none.
    ``on_change`` is called with the VM of each changed object.
    """

    def __init__(
        self, informer: Informer, vm_of: Callable[[Json], str], on_change: Callable[[ObjectName], None]
    ) -> None:
        self._informer = informer
        self._vm_of = vm_of
        self._on_change = on_change
        self._names: dict[ObjectName, set[ObjectName]] = {}
        informer.listen(self._changed)

    def objects_of(self, vm: ObjectName) -> list[Json]:
        """The VM's objects, oldest first."""
        objects = [cached for name in self._names.get(vm, ()) if (cached := self._informer.get(name)) is not None]
        # The name breaks ties, so that every leader sees the same order.
        return sorted(objects, key=lambda cached: (text(cached, "metadata", "creationTimestamp"), name_of(cached).name))

    def _changed(self, change: ObjectChange) -> None:
        # A relabelled object affects two VMs: its former one and its new one.
        for version in (change.before, change.after):
            if version is not None and (vm := self._vm_of(version)):
                self._update(ObjectName(change.name.namespace, vm), change)

    def _update(self, vm: ObjectName, change: ObjectChange) -> None:
        names = self._names.setdefault(vm, set())
        if change.after is not None and self._vm_of(change.after) == vm.name:
            names.add(change.name)
        else:
            names.discard(change.name)
        if not names:
            # Otherwise the index would grow with every VM that ever existed.
            del self._names[vm]
        self._on_change(vm)
