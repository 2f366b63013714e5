"""History of the API's store during a test: every version of each pod, VM and Lease of a namespace."""

from __future__ import annotations

import json
import threading
from types import TracebackType
from typing import Final

import httpx2 as httpx

from tests.conformance.cluster import done
from tests.kubernetes.real_kubernetes import PATIENCE
from tests.kubernetes.scheduling.books import PODS, VMS, Obj, Seen

LEASES: Final = "leases"
LAST: Final = "last"
"""The object that ends a recording."""

_ENDS: Final[dict[str, Obj]] = {
    PODS: {"spec": {"schedulerName": "none-such", "containers": [{"name": "main", "image": "example.invalid/image"}]}},
    VMS: {
        "apiVersion": "vm.neon.tech/v1",
        "kind": "VirtualMachine",
        "spec": {
            "schedulerName": "none-such",
            "guest": {
                "cpus": {"min": 1, "max": 1, "use": 1},
                "memorySlots": {"min": 1, "max": 1, "use": 1},
                "rootDisk": {"image": "example.invalid/image"},
            },
        },
    },
    LEASES: {"spec": {}},
}


class History:
    """Records while it is entered; ``events`` is whole once it has been left without an error."""

    def __init__(self, http: httpx.Client, paths: dict[str, str]) -> None:
        self._http = http
        self._paths = paths
        self._threads: list[threading.Thread] = []
        self._is_abandoned = False
        self.events: list[Seen] = []

    def __enter__(self) -> History:
        for plural, path in self._paths.items():
            listed = done(self._http.get(path))
            self.events += [self._seen(plural, "ADDED", each) for each in listed["items"]]
            version = listed["metadata"]["resourceVersion"]
            self._threads.append(threading.Thread(target=self._follow, args=(plural, path, version), daemon=True))
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            self._is_abandoned = True
            return
        for plural, path in self._paths.items():
            done(self._http.post(path, json={**_ENDS[plural], "metadata": {"name": LAST}}))
        for thread in self._threads:
            thread.join(PATIENCE)
            assert not thread.is_alive(), "the end of the recording was seen"
        for path in self._paths.values():
            done(self._http.delete(f"{path}/{LAST}"))

    def _follow(self, plural: str, path: str, version: str) -> None:
        try:
            self._watch(plural, path, version)
        except httpx.HTTPError:
            if not self._is_abandoned:
                raise

    def _watch(self, plural: str, path: str, version: str) -> None:
        query = {"watch": "true", "resourceVersion": version, "timeoutSeconds": "280"}
        with self._http.stream("GET", path, params=query, timeout=httpx.Timeout(20.0, read=None)) as response:
            assert response.status_code == 200
            for line in response.iter_lines():
                event = json.loads(line)
                if event["object"]["metadata"]["name"] == LAST:
                    return
                self.events.append(self._seen(plural, event["type"], event["object"]))

    def _seen(self, plural: str, kind: str, found: Obj) -> Seen:
        assert kind in {"ADDED", "MODIFIED", "DELETED"}, found
        return Seen(int(found["metadata"]["resourceVersion"]), plural, kind == "DELETED", found)
