"""The real ``kubernetes`` client, in both its forms, as the scheduler and people's scripts use it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib import import_module
from typing import Any

import pytest

from tests.conformance.cluster import Cluster, definition


# Imported by the tests that use it, because that takes a second. The client's own annotations stop half-way (watches
# and configuration have none), so it is used as untyped.
def kubernetes_client(name: str = "kubernetes") -> Any:
    return import_module(name)


def client_for(cluster: Cluster) -> Any:
    return kubernetes_client().config.new_client_from_config(str(cluster.kubeconfig))


@asynccontextmanager
async def async_client_for(cluster: Cluster) -> AsyncIterator[Any]:
    client = await kubernetes_client("kubernetes.aio").config.new_client_from_config(str(cluster.kubeconfig))
    try:
        yield client
    finally:
        await client.close()


def test_typed_client_creates_reads_patches_and_deletes(cluster: Cluster) -> None:
    kubernetes = kubernetes_client()
    with client_for(cluster) as client:
        core = kubernetes.client.CoreV1Api(client)
        meta = kubernetes.client.V1ObjectMeta(name="a", labels={"x": "y"})
        core.create_namespaced_config_map(
            cluster.namespace, kubernetes.client.V1ConfigMap(metadata=meta, data={"k": "v"})
        )
        core.patch_namespaced_config_map("a", cluster.namespace, {"data": {"k": "w"}})
        listed = core.list_namespaced_config_map(cluster.namespace, label_selector="x=y")
        core.delete_namespaced_config_map("a", cluster.namespace)
        with pytest.raises(kubernetes.client.ApiException) as refusal:
            core.read_namespaced_config_map("a", cluster.namespace)
    assert [one.data for one in listed.items] == [{"k": "w"}]
    assert (refusal.value.status, refusal.value.reason) == (404, "Not Found")


def test_the_typed_client_watches(cluster: Cluster) -> None:
    kubernetes = kubernetes_client()
    with client_for(cluster) as client:
        core = kubernetes.client.CoreV1Api(client)
        start = core.list_namespaced_config_map(cluster.namespace).metadata.resource_version
        cluster.config_map("a")
        cluster.config_map("b")
        watch = kubernetes.watch.Watch()
        found: list[tuple[str, str]] = []
        for event in watch.stream(
            core.list_namespaced_config_map,
            cluster.namespace,
            resource_version=start,
            timeout_seconds=20,
            field_selector="metadata.name!=kube-root-ca.crt",
        ):
            found.append((event["type"], event["object"].metadata.name))
            if len(found) == 2:
                watch.stop()
    assert found == [("ADDED", "a"), ("ADDED", "b")]


def test_dynamic_client_discovers_custom_resources(cluster: Cluster) -> None:
    with cluster.defined(definition()) as path, client_for(cluster) as client:
        api_version = "/".join(path.split("/")[2:4])
        things = (
            kubernetes_client("kubernetes.dynamic")
            .DynamicClient(client)
            .resources.get(api_version=api_version, kind="Thing")
        )
        body = {"apiVersion": api_version, "kind": "Thing", "metadata": {"name": "a"}, "spec": {"n": 1}}
        things.create(body=body, namespace=cluster.namespace)
        things.server_side_apply(body=body, name="a", namespace=cluster.namespace, field_manager="test")
        listed = things.get(namespace=cluster.namespace)
    assert [one.spec.n for one in listed.items] == [1]


async def test_the_asynchronous_client_reads_and_binds(cluster: Cluster) -> None:
    aio = kubernetes_client("kubernetes.aio")
    await asyncio.to_thread(cluster.pod, "p")
    async with async_client_for(cluster) as client:
        core = aio.client.CoreV1Api(client)
        target = aio.client.V1ObjectReference(kind="Node", name=cluster.node)
        binding = aio.client.V1Binding(metadata=aio.client.V1ObjectMeta(name="p"), target=target)
        await core.create_namespaced_pod_binding_without_preload_content("p", cluster.namespace, binding)
        pods = await core.list_namespaced_pod(cluster.namespace, field_selector=f"spec.nodeName={cluster.node}")
    assert [pod.metadata.name for pod in pods.items] == ["p"]


async def test_the_asynchronous_client_watches(cluster: Cluster) -> None:
    aio = kubernetes_client("kubernetes.aio")
    async with async_client_for(cluster) as client:
        core = aio.client.CoreV1Api(client)
        await asyncio.to_thread(cluster.config_map, "a")
        found: list[tuple[str, str]] = []
        async with aio.watch.Watch() as watch:
            # The stream is read to its end: the client drops a connection that it leaves early.
            query = {"field_selector": "metadata.name=a", "timeout_seconds": 1}
            async for event in watch.stream(core.list_namespaced_config_map, cluster.namespace, **query):
                found.append((event["type"], event["object"].metadata.name))
                if found == [("ADDED", "a")]:
                    await asyncio.to_thread(cluster.http.delete, cluster.path("configmaps", "a"))
    assert found == [("ADDED", "a"), ("DELETED", "a")]
