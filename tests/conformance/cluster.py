"""A Kubernetes API as the tests speak to it: requests, watches, and places of one's own."""

from __future__ import annotations

import base64
import itertools
import json
import ssl
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2 as httpx

from tests import plain_yaml

Json = dict[str, Any]

JSON_PATCH = "application/json-patch+json"
MERGE_PATCH = "application/merge-patch+json"
STRATEGIC_PATCH = "application/strategic-merge-patch+json"
APPLY_PATCH = "application/apply-patch+yaml"
CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"

_PATIENCE = 400
_numbers = itertools.count(1)


def client_of(kubeconfig: Path) -> httpx.Client:
    """A client for the current context of a kubeconfig."""
    config = plain_yaml.load(kubeconfig.read_text())
    contexts = {one["name"]: one["context"] for one in config["contexts"]}
    context = contexts[config["current-context"]]
    cluster = next(one["cluster"] for one in config["clusters"] if one["name"] == context["cluster"])
    user = next(one["user"] for one in config["users"] if one["name"] == context["user"])
    headers = {"Authorization": f"Bearer {user['token']}"} if "token" in user else {}
    return httpx.Client(base_url=cluster["server"], headers=headers, verify=_trust(cluster, user), timeout=20)


class SharedContext(ssl.SSLContext):
    """One that connections of several threads begin with at once: its protocols are set when it is made.

    httpcore2 sets them again for each connection, which takes them away from a greeting that is just being written.
    """

    def set_alpn_protocols(self, alpn_protocols: Iterable[str]) -> None:
        """They are set already, to the one that httpcore2 asks for without HTTP/2."""


def _trust(cluster: Json, user: Json) -> ssl.SSLContext:
    context = SharedContext(ssl.PROTOCOL_TLS_CLIENT)
    ssl.SSLContext.set_alpn_protocols(context, ["http/1.1"])
    context.load_verify_locations(cadata=base64.b64decode(cluster["certificate-authority-data"]).decode())
    if "client-certificate-data" in user:
        with tempfile.TemporaryDirectory() as directory:
            chain = Path(directory) / "client.pem"
            parts = (user["client-key-data"], user["client-certificate-data"])
            chain.write_bytes(b"".join(base64.b64decode(part) for part in parts))
            context.load_cert_chain(chain)
    return context


@dataclass(frozen=True, slots=True)
class Cluster:
    """One API under test, and a namespace in it that is the test's own."""

    http: httpx.Client
    kubeconfig: Path
    namespace: str

    @property
    def node(self) -> str:
        """A node that no kubelet has, and no other test: a real cluster removes its pods some 40 s later."""
        return f"node-of-{self.namespace}"

    def path(self, plural: str, name: str = "", group_version: str = "v1") -> str:
        """The path of a collection, or of an object, in the test's namespace."""
        root = f"/apis/{group_version}" if "/" in group_version else f"/api/{group_version}"
        return f"{root}/namespaces/{self.namespace}/{plural}" + (f"/{name}" if name else "")

    def create(self, path: str, body: Json) -> Json:
        """Create ``body`` and return the stored object."""
        return done(self.http.post(path, json=body))

    def get(self, path: str, **query: object) -> Json:
        """An object or a list."""
        return done(self.http.get(path, params={key: str(value) for key, value in query.items()}))

    def patch(self, path: str, body: object, kind: str = MERGE_PATCH, **query: str) -> httpx.Response:
        """The answer to a patch of that kind."""
        raw = json.dumps(body).encode()
        return self.http.patch(path, content=raw, headers={"Content-Type": kind}, params=query)

    def config_map(self, name: str, **data: str) -> Json:
        """A new ConfigMap."""
        return self.create(self.path("configmaps"), {"metadata": {"name": name}, "data": data})

    def pod(self, name: str, **more: object) -> Json:
        """A new pod that no scheduler handles. ``more`` goes into its metadata."""
        self.http.post(self.path("serviceaccounts"), json={"metadata": {"name": "default"}})
        spec = {
            "schedulerName": "none-such",
            "automountServiceAccountToken": False,
            "containers": [{"name": "main", "image": "example.invalid/image"}],
        }
        return self.create(self.path("pods"), {"metadata": {"name": name, **more}, "spec": spec})

    @contextmanager
    def watch(self, path: str, **query: object) -> Iterator[Iterator[Json]]:
        """The events of a watch, one by one; stop reading when you have seen enough."""
        params = {"watch": "true", "timeoutSeconds": "20", **{key: str(value) for key, value in query.items()}}
        with self.http.stream("GET", path, params=params) as response:
            assert response.status_code == 200
            yield (json.loads(line) for line in response.iter_lines())

    def until_gone(self, path: str, name: str) -> None:
        """Returns once the object is gone, however long its end takes."""
        listed = self.get(path, fieldSelector=f"metadata.name={name}")
        if not listed["items"]:
            return
        version = listed["metadata"]["resourceVersion"]
        with self.watch(path, fieldSelector=f"metadata.name={name}", resourceVersion=version) as events:
            next(event for event in events if event["type"] == "DELETED")

    def until(self, is_so: Callable[[], bool]) -> None:
        """Wait until the condition is true, for a limited number of attempts."""
        any(is_so() for _ in range(_PATIENCE))

    @contextmanager
    def defined(self, definition: Json) -> Iterator[str]:
        """Defines a custom resource; yields the path of its collection in the test's namespace once it is served."""
        spec = definition["spec"]
        self.create(CRDS, definition)
        stored = next(one["name"] for one in spec["versions"] if one["storage"])
        path = self.path(spec["names"]["plural"], group_version=f"{spec['group']}/{stored}")
        self.until(lambda: self.http.get(path).status_code == 200)
        try:
            yield path
        finally:
            self.http.delete(f"{CRDS}/{definition['metadata']['name']}")


def done(response: httpx.Response) -> Json:
    """The body of an answer that says yes."""
    assert response.is_success, response.text
    body: Json = response.json()
    return body


def refused(response: httpx.Response) -> tuple[int, str]:
    """Code and reason of an answer that says no, which must be a Status."""
    status = response.json()
    assert (status["kind"], status["apiVersion"], status["status"]) == ("Status", "v1", "Failure")
    assert status["code"] == response.status_code
    return status["code"], status["reason"]


def seen(events: Iterator[Json], count: int) -> list[tuple[str, str]]:
    """Type and name of the next ``count`` events."""
    return [(event["type"], event["object"]["metadata"]["name"]) for event in itertools.islice(events, count)]


def fresh(word: str) -> str:
    """A name that no other test of this run uses."""
    return f"{word}{next(_numbers)}"


def definition(**version: object) -> Json:
    """A CustomResourceDefinition of a fresh group with plural ``things``; ``version`` adds to its one version."""
    group = f"{fresh('g')}.conformance.test"
    schema = {
        "type": "object",
        "properties": {"spec": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}},
    }
    one = {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}, **version}
    names = {"plural": "things", "singular": "thing", "kind": "Thing", "shortNames": ["th"]}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"things.{group}"},
        "spec": {"group": group, "scope": "Namespaced", "names": names, "versions": [one]},
    }
