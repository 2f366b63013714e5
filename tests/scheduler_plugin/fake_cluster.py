"""A Kubernetes API in memory behind the scheduler's port, with faults that a test schedules.

It keeps what matters to the scheduler: resource versions that rise with every change, and with nothing else: a patch
that says what is there already leaves the version as it is. Watches that resume or answer 410 and stay silent from a
version to come, merge patches with preconditions on uid and resourceVersion, bindings that
refuse a pod that is bound, resizes of what a pod requests, creation that refuses a name that is taken, deletion that
waits for finalizers.
"""

from __future__ import annotations

import asyncio
import copy
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec

from protocol.kubernetes.api import ApiCall, ApiError, ApiRefusedError, ApiUnknownError
from protocol.kubernetes.objects import JsonObject
from protocol.kubernetes.pages import Page, read_page
from protocol.kubernetes.refusals import classify
from protocol.names import SCHEDULER_NAME
from protocol.units import Seconds
from tests.scheduler_plugin.objects import label_of

Obj = dict[str, Any]
NODES = "/api/v1/nodes"
PODS = "/api/v1/pods"
VMS = "/apis/vm.neon.tech/v1/virtualmachines"
MIGRATIONS = "/apis/vm.neon.tech/v1/virtualmachinemigrations"
NAMESPACES = "/api/v1/namespaces"
CLAIMS = "/api/v1/persistentvolumeclaims"
VOLUMES = "/api/v1/persistentvolumes"
LEASES = "/apis/coordination.k8s.io/v1/leases"
SLICES = "/apis/discovery.k8s.io/v1/endpointslices"
SERVICES = "/api/v1/services"
HPAS = "/apis/autoscaling/v2/horizontalpodautoscalers"
VPAS = "/apis/autoscaling.k8s.io/v1/verticalpodautoscalers"
CLUSTERS = "/apis/postgresql.cnpg.io/v1/clusters"

BUMP = 1_000_000_000

EVERY_PATH = (
    *(NODES, PODS, VMS, MIGRATIONS, NAMESPACES, CLAIMS, VOLUMES, LEASES, SLICES, SERVICES),
    *(HPAS, VPAS, CLUSTERS),
)


@dataclass(slots=True)
class Fault:
    """A failure of the next ``times`` calls that ``matches`` selects.

    ``refuse`` is a status that is answered, in the words ``says``; otherwise the call is lost, before it is applied or
    after (``is_applied``). ``hold`` delays the call until it is set; with ``is_stale`` its answer is from before.
    """

    matches: Callable[[ApiCall], bool]
    refuse: int | None = None
    says: str = "refused by a fault"
    is_applied: bool = False
    hold: asyncio.Event | None = None
    is_stale: bool = False
    retry_after: Seconds | None = None
    times: int = 1


@dataclass(slots=True)
class Collection:
    objects: dict[tuple[str, str], Obj] = field(default_factory=dict)
    events: list[tuple[int, str, Obj]] = field(default_factory=list)
    compacted: int = 0


class FakeCluster:
    """``KubernetesApi`` over dictionaries."""

    def __init__(self) -> None:
        self.revision = 0
        self.collections = {path: Collection() for path in EVERY_PATH}
        self.faults: list[Fault] = []
        self.calls: list[ApiCall] = []
        self.lost: list[ApiCall] = []
        """Those that a fault has lost before they took effect: they may yet arrive (``arrive``)."""
        self.notices: list[Obj] = []
        self.tokens: dict[str, Obj] = {}
        """The status of a review by the token's label (``objects.token_text``)."""
        self.is_away = False
        self.offers_resize = True
        self.webhook: Callable[[Obj], object] | None = None
        """Changes each object that a patch is about to store."""
        self.admitted: Callable[[Obj], object] | None = None
        """Changes each pod whose requests are about to be changed, as a webhook may."""
        self.resized: Callable[[Obj], object] | None = None
        """Hears of each pod whose requests were changed, as its kubelet does."""
        self.stamp: Callable[[], str] = lambda: "2026-01-01T00:00:00Z"
        self._news = asyncio.Event()
        self._cut = 0
        self._peaceful: set[int] = set()

    # What a test does -------------------------------------------------------------------------------------------

    def put(self, path: str, obj: Obj) -> Obj:
        """Creates or replaces an object; its generation counts how often its spec was changed."""
        collection, key = self.collections[path], _key(obj)
        before = collection.objects.get(key)
        kind = "ADDED" if before is None else "MODIFIED"
        self.revision += 1
        obj = _copied(obj)
        obj["metadata"]["resourceVersion"] = str(self.revision)
        obj["metadata"]["generation"] = 1 if before is None else _generation(before, obj)
        collection.objects[key] = obj
        self._publish(collection, kind, obj)
        return obj

    def remove(self, path: str, namespace: str, name: str) -> None:
        """Deletes an object."""
        collection = self.collections[path]
        gone = collection.objects.pop((namespace, name))
        self.revision += 1
        gone["metadata"]["resourceVersion"] = str(self.revision)
        self._publish(collection, "DELETED", gone)

    def get(self, path: str, namespace: str, name: str) -> Obj:
        return self.collections[path].objects[namespace, name]

    def forget_history(self) -> None:
        """Every watch from the past is answered with 410 from now on, and running ones end."""
        for collection in self.collections.values():
            collection.compacted = self.revision
            collection.events.clear()
        self.cut_watches()

    def backup(self) -> FakeCluster:
        """A backup of the store, to be restored later."""
        kept = FakeCluster()
        kept.revision, kept.collections = self.revision, copy.deepcopy(self.collections)
        return kept

    def restore(
        self, kept: FakeCluster, ends: Callable[[FakeCluster], None] | None = None, *, is_bumped: bool = False
    ) -> None:
        """The store is again what it was; versions begin again from there, and running watches end, cut unless told.

        ``is_bumped``: by ``etcdutl snapshot restore --bump-revision 1000000000 --mark-compacted``.
        """
        self.revision, self.collections = kept.revision, copy.deepcopy(kept.collections)
        if is_bumped:
            self.revision += BUMP
            self.forget_history()
        (ends or FakeCluster.cut_watches)(self)

    def cut_watches(self) -> None:
        """Breaks every watch."""
        self._cut += 1
        self._news.set()

    def end_watches(self) -> None:
        """End every watch cleanly, like a server that shuts down."""
        self._peaceful.add(self._cut + 1)
        self.cut_watches()

    def go_away(self) -> None:
        """The API answers no request until ``come_back``."""
        self.is_away = True
        self.cut_watches()

    def come_back(self) -> None:
        self.is_away = False

    def arrive(self, lost: ApiCall) -> bool:
        """A call that was lost arrives after all; whether it has taken effect."""
        self.lost.remove(lost)
        try:
            self._apply(lost)
        except ApiRefusedError:
            return False
        return True

    def made(self, method: str, part: str) -> list[ApiCall]:
        """The calls with this method whose path contains ``part``."""
        return [call for call in self.calls if call.method == method and part in call.path]

    # KubernetesApi ----------------------------------------------------------------------------------------------

    async def page(self, call: ApiCall) -> Page:
        return read_page(msgspec.json.encode(await self.call(call)))

    async def call(self, call: ApiCall) -> JsonObject:
        self.calls.append(call)
        fault = next((one for one in self.faults if one.times > 0 and one.matches(call)), None)
        if fault is not None:
            fault.times -= 1
            stale = self._answer(call) if fault.is_stale else None
            if fault.hold is not None:
                await fault.hold.wait()
            if stale is not None:
                return stale
            if fault.refuse is not None:
                raise refused(fault.refuse, fault.says, retry_after=fault.retry_after)
            if fault.is_applied:
                self._apply(call)
            elif fault.hold is None:
                self.lost.append(call)
            if fault.hold is None:
                raise ApiUnknownError("lost by a fault")
        if self.is_away:
            raise ApiUnknownError("the API is away")
        return self._answer(call)

    def _answer(self, call: ApiCall) -> JsonObject:
        return _copied(self._apply(call))

    def stream(self, call: ApiCall) -> AbstractAsyncContextManager[AsyncIterator[bytes]]:
        return self._stream(call)

    @asynccontextmanager
    async def _stream(self, call: ApiCall) -> AsyncIterator[AsyncIterator[bytes]]:
        if self.is_away:
            raise ApiUnknownError("the API is away")
        if "fieldSelector" in call.query:
            yield self._lines_of_one(call)
        else:
            yield self._lines(self.collections[call.path], int(call.query["resourceVersion"]))

    async def _lines_of_one(self, call: ApiCall) -> AsyncIterator[bytes]:
        """The watch events of one object: its present state, then its changes."""
        path, key = _address(f"{call.path}/{call.query['fieldSelector'].removeprefix('metadata.name=')}")
        since, found = self.revision, self.collections[path].objects.get(key)
        if found is not None:
            yield msgspec.json.encode({"type": "ADDED", "object": found})
        async for line in self._lines(self.collections[path], since):
            if _key(msgspec.json.decode(line)["object"]) == key:
                yield line

    async def _lines(self, collection: Collection, since: int) -> AsyncIterator[bytes]:
        cut = self._cut
        if since < collection.compacted:
            yield msgspec.json.encode({"type": "ERROR", "object": {"code": 410, "message": "too old"}})
            return
        while True:
            for revision, kind, obj in [event for event in collection.events if event[0] > since]:
                since = revision
                yield msgspec.json.encode({"type": kind, "object": obj})
            if self._cut != cut and self._cut in self._peaceful:
                return
            if self._cut != cut:
                raise ApiUnknownError("the watch was cut")
            self._news.clear()
            await self._news.wait()

    def _publish(self, collection: Collection, kind: str, obj: Obj) -> None:
        collection.events.append((self.revision, kind, _copied(obj)))
        self._news.set()

    def _apply(self, call: ApiCall) -> Obj:
        body: Any = call.body
        if call.method == "GET" and (call.path in self.collections or call.path == "/api/v1"):
            return self._list(call.path)
        if "labelSelector" in call.query:
            return self._selected(call)
        if call.path.endswith("/tokenreviews"):
            return {"status": self.tokens.get(label_of(body["spec"]["token"]), {"authenticated": False})}
        if call.path.endswith("/events"):
            return self._told(body)
        if call.path.endswith(("/binding", "/resize")):
            return self._bind(call, body) if call.method == "POST" else self._resize(call, body)
        return self._create(call.path, body) if call.method == "POST" else self._one(call, body)

    def _one(self, call: ApiCall, body: Obj) -> Obj:
        path, key = _address(call.path)
        found = self.collections[path].objects.get(key)
        if found is None:
            raise refused(404, "not found")
        if call.method == "DELETE":
            return self._delete(path, found, body)
        return found if call.method == "GET" else self._patch(path, found, body)

    def _told(self, event: Obj) -> Obj:
        metadata = event["metadata"]
        name = metadata.get("name") or f"{metadata['generateName']}{len(self.notices)}"
        event = {**event, "metadata": {**metadata, "name": name}}
        if any(told["metadata"] == event["metadata"] for told in self.notices):
            raise refused(409, "already exists", "AlreadyExists")
        self.notices.append(event)
        return dict(event)

    def _create(self, path: str, body: Obj) -> Obj:
        namespace = path.split("/")[-2]
        path = _address(f"{path}/new")[0]
        if (namespace, body["metadata"]["name"]) in self.collections[path].objects:
            raise refused(409, "already exists", "AlreadyExists")
        made = _copied(body)
        made["metadata"] |= {"namespace": namespace, "uid": f"uid-{self.revision}", "creationTimestamp": self.stamp()}
        return self.put(path, made)

    def _delete(self, path: str, found: Obj, body: Obj) -> Obj:
        wanted = body["preconditions"]["uid"]
        if wanted != found["metadata"]["uid"]:
            raise refused(409, "the uid differs")
        if not found["metadata"].get("finalizers"):
            self.remove(path, found["metadata"]["namespace"], found["metadata"]["name"])
            return found
        leaving = _copied(found)
        leaving["metadata"]["deletionTimestamp"] = self.stamp()
        return self.put(path, leaving)

    def _list(self, path: str) -> Obj:
        if path == "/api/v1":
            return {"resources": [{"name": "pods/resize"}] if self.offers_resize else []}
        collection = self.collections[path]
        return {"metadata": {"resourceVersion": str(self.revision)}, "items": list(collection.objects.values())}

    def _selected(self, call: ApiCall) -> Obj:
        """Those of one namespace that have one label."""
        namespace, label = call.path.split("/")[-2], call.query["labelSelector"].split("=")
        objects = self.collections[_address(f"{call.path}/any")[0]].objects
        found = [each for (its, _), each in objects.items() if its == namespace and label in _labels(each)]
        return {"metadata": {"resourceVersion": str(self.revision)}, "items": found}

    def _bind(self, call: ApiCall, body: Obj) -> Obj:
        path, key = _address(call.path.removesuffix("/binding"))
        pod = self.collections[path].objects.get(key)
        if pod is None:
            raise refused(404, "not found")
        if pod["spec"].get("nodeName") or pod["metadata"]["uid"] != body["metadata"]["uid"]:
            raise refused(409, "the pod is bound, or is another one")
        bound = _copied(pod)
        bound["spec"]["nodeName"] = body["target"]["name"]
        self.put(PODS, bound)
        return {}

    def _resize(self, call: ApiCall, body: Obj) -> Obj:
        path, key = _address(call.path.removesuffix("/resize"))
        found = self.collections[path].objects.get(key)
        if found is None or not self.offers_resize:
            raise refused(404, "not found")
        _guarded(found, body["metadata"])
        sized = {each["name"]: each["resources"] for each in body["spec"]["containers"]}
        changed = _copied(found)
        for each in changed["spec"]["containers"]:
            each["resources"] = {**each.get("resources", {}), **sized.get(each["name"], {})}
        if self.admitted is not None:
            self.admitted(changed)
        if changed == found:
            return found
        changed["metadata"]["managedFields"] = [_resized(name, limits="limits" in each) for name, each in sized.items()]
        put = self.put(path, changed)
        if self.resized is not None:
            self.resized(put)
        return put

    def _patch(self, path: str, found: Obj, body: Obj) -> Obj:
        wanted = body["metadata"]
        _guarded(found, wanted)
        changed = _copied(found)
        if "annotations" in wanted:
            changed["metadata"].setdefault("annotations", {}).update(wanted["annotations"])
        if "finalizers" in wanted:
            changed["metadata"]["finalizers"] = wanted["finalizers"]
            if "deletionTimestamp" in changed["metadata"] and not wanted["finalizers"]:
                self.remove(path, *_key(found))
                return changed
        for name, value in body.items():
            if name != "metadata":
                changed[name] = {**changed.get(name, {}), **value} if isinstance(value, dict) else value
        if self.webhook is not None:
            self.webhook(changed)
        return found if changed == found else self.put(path, changed)


def _resized(container: str, *, limits: bool) -> Obj:
    """The scheduler has written what the container requests, and its CPU limit."""
    requests: Obj = {"f:resources": {"f:requests": {"f:cpu": {}, "f:memory": {}}}}
    if limits:
        requests["f:resources"]["f:limits"] = {"f:cpu": {}}
    fields = {"f:spec": {"f:containers": {f'k:{{"name":"{container}"}}': requests}}}
    return {"manager": SCHEDULER_NAME, "subresource": "resize", "fieldsV1": fields}


def _guarded(found: Obj, wanted: Obj) -> None:
    for guard in ("uid", "resourceVersion"):
        if guard in wanted and wanted[guard] != found["metadata"][guard]:
            raise refused(409, f"the {guard} differs")


def _copied(obj: Obj) -> Obj:
    """The same JSON again: many times as fast as a deep copy."""
    return msgspec.json.decode(msgspec.json.encode(obj))  # type: ignore[no-any-return]  # JSON in, JSON out


def _labels(obj: Obj) -> list[list[str]]:
    return [list(each) for each in obj["metadata"].get("labels", {}).items()]


def _generation(before: Obj, obj: Obj) -> int:
    generation: int = before["metadata"]["generation"]
    return generation + (obj.get("spec") != before.get("spec"))


def _key(obj: Obj) -> tuple[str, str]:
    return obj["metadata"].get("namespace", ""), obj["metadata"]["name"]


def _address(path: str) -> tuple[str, tuple[str, str]]:
    """A single object's path as its collection and key."""
    parts = path.split("/")
    if "namespaces" not in parts:
        return "/".join(parts[:-1]), ("", parts[-1])
    at = parts.index("namespaces")
    return "/".join([*parts[:at], parts[at + 2]]), (parts[at + 1], parts[at + 3])


def refused(status: int, message: str, reason: str = "", retry_after: Seconds | None = None) -> ApiRefusedError:
    """An answer of the API server's that is no success."""
    return ApiRefusedError(replace(classify(status, reason), message=message, retry_after=retry_after))


def always(_: ApiCall) -> bool:
    return True


def to(method: str, part: str) -> Callable[[ApiCall], bool]:
    """Calls with this method whose path contains ``part``."""
    return lambda call: call.method == method and part in call.path


__all__ = ["MIGRATIONS", "NODES", "PODS", "VMS", "ApiError", "FakeCluster", "Fault", "always", "to"]
