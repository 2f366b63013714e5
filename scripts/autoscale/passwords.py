"""Passwords of VMs' databases: the Secret that a VM's runner reads, made and read as its owner does."""

from __future__ import annotations

import secrets

from deploy.kube.client import ApiClient
from deploy.neonvm.objects.vm_spec import password_secret
from deploy.neonvm.password import password_in
from protocol.kubernetes.api import ApiRefusedError
from protocol.kubernetes.objects import Json
from protocol.kubernetes.refusals import RefusalKind
from protocol.kubernetes.resources import SECRETS
from protocol.names import PASSWORD_KEY


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
        if error.kind is not RefusalKind.CONFLICT:
            raise


async def password_of(client: ApiClient, vm: Json) -> str:
    """The password of the VM's database; empty if its owner has set none. Raises ``ApiRefusedError``."""
    try:
        return password_in(await client.get(SECRETS, password_secret(vm)))
    except ApiRefusedError as error:
        if error.kind is not RefusalKind.NOT_FOUND:
            raise
        return ""
