"""Postgres VMs of demonstrations and benchmarks, with their passwords in Secrets."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from deploy.kube.client import ApiClient
from deploy.neonvm.objects.vm_spec import password_secret
from deploy.neonvm.password import password_in
from protocol.kubernetes.api import Tolerating
from protocol.kubernetes.objects import Json, annotations_of, child, name_of
from protocol.kubernetes.refusals import RefusalKind
from protocol.kubernetes.resources import SECRETS, VIRTUAL_MACHINES
from protocol.messages import ObjectName
from protocol.names import AUTO_MIGRATION, LABEL_ENABLED, PASSWORD_KEY, VM_GROUP, VM_VERSION
from scripts.autoscale.demonstration.pgbench import DatabaseServer
from scripts.autoscale.site import Site


def postgres_vm(name: ObjectName, cpus: int, slots: int) -> Json:
    """A VM with autoscaling that starts with 1 CPU and two slots of 128Mi; ``cpus`` and ``slots`` are its maximum."""
    return {
        "apiVersion": f"{VM_GROUP}/{VM_VERSION}",
        "kind": "VirtualMachine",
        "metadata": {"name": name.name, "namespace": name.namespace, "labels": {LABEL_ENABLED: "true"}},
        "spec": {
            "schedulerName": "autoscale-scheduler",
            "extraNetwork": {"enable": True},
            "guest": {
                "cpus": {"min": 1, "max": cpus, "use": 1},
                "memorySlotSize": "128Mi",
                "memorySlots": {"min": 2, "max": slots, "use": 2},
                "rootDisk": {"image": "localhost:5001/postgres-vm:dev"},
                "ports": [{"name": "postgres", "port": 5432}],
            },
            # A pod without requests is evicted first, and ignored by other schedulers.
            "podResources": {"requests": {"cpu": "1", "memory": "256Mi"}},
        },
    }


def pinned(vm: Json) -> Json:
    """The VM with an annotation that keeps the scheduler from moving it, until it is patched with ``MAY_MOVE``."""
    annotations = {**annotations_of(vm), AUTO_MIGRATION: "false"}
    return {**vm, "metadata": {**child(vm, "metadata"), "annotations": annotations}}


# In a merge patch, null removes the key.
MAY_MOVE: Final[Json] = {"metadata": {"annotations": {AUTO_MIGRATION: None}}}


_POSTGRES: Final = 5432


async def make_password(client: ApiClient, vm: Json) -> None:
    """Creates the Secret of ``vm`` with a random password, unless there is one. Raises ``ApiRefusedError``."""
    name = password_secret(vm)
    secret: Json = {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": name.name, "namespace": name.namespace},
        "stringData": {PASSWORD_KEY: secrets.token_urlsafe(16)},
    }
    # Another command may have created it meanwhile; an existing password stays.
    await client.ensure(SECRETS, name.namespace, secret)


async def password_of(client: ApiClient, vm: Json) -> str:
    """The password of the VM's database; empty if its owner has set none. Raises ``ApiRefusedError``."""
    with Tolerating(RefusalKind.NOT_FOUND):
        return password_in(await client.get(SECRETS, password_secret(vm)))
    return ""


async def create_vm(client: ApiClient, vm: Json) -> None:
    """Creates the VM, after the Secret with its database's password, which the VM reads at boot."""
    await make_password(client, vm)
    await client.create(VIRTUAL_MACHINES, name_of(vm).namespace, vm)


@asynccontextmanager
async def database_of(site: Site, vm: Json) -> AsyncIterator[DatabaseServer]:
    """Opens access to the VM's database within the context."""
    async with site.into_vm(vm, _POSTGRES) as address:
        yield DatabaseServer(*address, await password_of(site.client, vm))
