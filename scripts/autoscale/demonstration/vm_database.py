"""A VM and its database: made with a password in a Secret, as its owner does, and reached from this machine."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from deploy.kube.client import ApiClient
from deploy.neonvm.objects.vm_spec import password_secret
from deploy.neonvm.password import password_in
from protocol.kubernetes.api import ApiRefusedError
from protocol.kubernetes.objects import Json, name_of
from protocol.kubernetes.refusals import RefusalKind
from protocol.kubernetes.resources import SECRETS, VIRTUAL_MACHINES
from protocol.names import PASSWORD_KEY
from scripts.autoscale.demonstration.pgbench import DatabaseServer
from scripts.autoscale.site import Site

_POSTGRES: Final = 5432


async def make_password(client: ApiClient, vm: Json) -> None:
    """Creates the Secret of ``vm`` with a random password, unless there is one. Raises ``ApiRefusedError``."""
    name = password_secret(vm)
    made: Json = {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": name.name, "namespace": name.namespace},
        "stringData": {PASSWORD_KEY: secrets.token_urlsafe(16)},
    }
    try:
        await client.create(SECRETS, name.namespace, made)
    except ApiRefusedError as error:
        # Another command may have created it meanwhile; an existing password always stays.
        if error.kind is not RefusalKind.ALREADY_EXISTS:
            raise


async def password_of(client: ApiClient, vm: Json) -> str:
    """The password of the VM's database; empty if its owner has set none. Raises ``ApiRefusedError``."""
    try:
        return password_in(await client.get(SECRETS, password_secret(vm)))
    except ApiRefusedError as error:
        if error.kind is not RefusalKind.NOT_FOUND:
            raise
        return ""


async def create_vm(client: ApiClient, vm: Json) -> None:
    """Creates the VM, and the Secret of its database's password first: a VM takes it from there at boot."""
    await make_password(client, vm)
    await client.create(VIRTUAL_MACHINES, name_of(vm).namespace, vm)


@asynccontextmanager
async def database_of(site: Site, vm: Json) -> AsyncIterator[DatabaseServer]:
    """The VM's database, as long as the block lasts."""
    async with site.into_vm(vm, _POSTGRES) as place:
        yield DatabaseServer(*place, await password_of(site.client, vm))
