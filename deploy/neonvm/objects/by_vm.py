"""An index of objects by the VM that they belong to, kept up to date by an informer."""

from __future__ import annotations

from collections.abc import Callable

from deploy.kube.informer import Informer, ObjectChange
from protocol.kubernetes.objects import Json, name_of, text
from protocol.messages import ObjectName


class ByVm:
    """The objects of one kind, by VM. ``vm_of`` names the VM of an object, empty if it has none. ``on_change`` gets the
    name of every VM with a changed object.
    """

    def __init__(self, found: Informer, vm_of: Callable[[Json], str], on_change: Callable[[ObjectName], None]) -> None:
        self._informer = found
        self._vm_of = vm_of
        self._on_change = on_change
        self._names: dict[ObjectName, set[ObjectName]] = {}
        found.listen(self._changed)

    def of(self, vm: ObjectName) -> list[Json]:
        """The objects of ``vm``, the oldest first."""
        objects = [cached for name in self._names.get(vm, ()) if (cached := self._informer.get(name)) is not None]
        # By age and then by name, so that every leader sees the same order.
        return sorted(objects, key=lambda cached: (text(cached, "metadata", "creationTimestamp"), name_of(cached).name))

    def _changed(self, change: ObjectChange) -> None:
        # A relabelled object concerns two VMs: the one it has left and the one it belongs to.
        for version in (change.before, change.after):
            if version is not None and (vm := self._vm_of(version)):
                self._note(ObjectName(change.name.namespace, vm), change)

    def _note(self, vm: ObjectName, change: ObjectChange) -> None:
        names = self._names.setdefault(vm, set())
        if change.after is not None and self._vm_of(change.after) == vm.name:
            names.add(change.name)
        else:
            names.discard(change.name)
        if not names:
            # VMs come and go; without this the index would grow for ever.
            del self._names[vm]
        self._on_change(vm)
