"""A VM and its database: made with a password, and reached from this machine."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from deploy.kube.client import ApiClient
from protocol.kubernetes.objects import Json, name_of
from protocol.kubernetes.resources import VIRTUAL_MACHINES
from scripts.autoscale.demonstration.pgbench import DatabaseServer
from scripts.autoscale.passwords import make_password, password_of
from scripts.autoscale.site import Site

_POSTGRES: Final = 5432


async def create_vm(client: ApiClient, vm: Json) -> None:
    """Creates the VM, and the Secret of its database's password first: a VM takes it from there at boot."""
    await make_password(client, vm)
    await client.create(VIRTUAL_MACHINES, name_of(vm).namespace, vm)


@asynccontextmanager
async def database_of(site: Site, vm: Json) -> AsyncIterator[DatabaseServer]:
    """The VM's database, as long as the block lasts."""
    async with site.into_vm(vm, _POSTGRES) as place:
        yield DatabaseServer(*place, await password_of(site.client, vm))
