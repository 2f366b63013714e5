"""Objects are found by their VM as they are created, changed and deleted."""

from deploy.kube.informer import Informer
from deploy.neonvm.objects.vm_index import VmIndex
from protocol.kubernetes.objects import Json, labels_of, name_of
from protocol.kubernetes.resources import PODS
from protocol.messages import ObjectName
from tests.fake_clock import FakeClock
from tests.neonvm.in_process import InProcess


def pod(name: str, vm: str, created: str = "2026-01-01T00:00:00Z") -> Json:
    metadata = {"name": name, "namespace": "default", "labels": {"vm": vm}, "creationTimestamp": created}
    return {"metadata": metadata}


class WatchedInformer(Informer):
    """A cache that a test fills."""

    def become(self, name: str, new: Json | None) -> None:
        if new is None:
            self._facts.forget(ObjectName("default", name))
        else:
            self._facts.learn(new)


async def test_objects_are_grouped_by_vm_oldest_first() -> None:
    api = InProcess()
    async with api.client() as client:
        cache, told = WatchedInformer(client, PODS, FakeClock()), list[ObjectName]()
        index = VmIndex(cache, lambda each: labels_of(each).get("vm", ""), told.append)
        db, other = ObjectName("default", "db"), ObjectName("default", "other")
        cache.become("young", pod("young", "db", "2026-01-02T00:00:00Z"))
        cache.become("b", pod("b", "db"))
        cache.become("a", pod("a", "db"))
        cache.become("foreign", pod("foreign", ""))
        assert [name_of(each).name for each in index.objects_of(db)] == ["a", "b", "young"]
        told.clear()
        cache.become("a", pod("a", "other"))
        assert (set(told), [name_of(each).name for each in index.objects_of(other)]) == ({db, other}, ["a"])
        for name in ("a", "b", "young", "foreign"):
            cache.become(name, None)
        assert (index.objects_of(db), index.objects_of(other)) == ([], [])
    api.server.close()
