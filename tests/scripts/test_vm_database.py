"""The Secret of a database's password, which a command makes before its VM."""

from __future__ import annotations

from typing import cast

import pytest

from deploy.kube.client import ApiClient
from protocol.kubernetes.api import ApiRefusedError
from protocol.kubernetes.objects import Json
from protocol.kubernetes.refusals import read_refusal
from scripts.autoscale.demonstration.vm_database import make_password

VM: Json = {"metadata": {"namespace": "default", "name": "db"}}


class RefusingClient:
    """An API that refuses every Secret for ``reason``."""

    def __init__(self, status: int, reason: str) -> None:
        self._refusal = read_refusal(status, b'{"kind": "Status", "reason": "%s"}' % reason.encode())

    async def create(self, *_: object) -> None:
        raise ApiRefusedError(self._refusal)


async def test_existing_password_stays() -> None:
    await make_password(cast("ApiClient", RefusingClient(409, "AlreadyExists")), VM)


async def test_refused_password_is_an_error() -> None:
    with pytest.raises(ApiRefusedError):
        await make_password(cast("ApiClient", RefusingClient(403, "Forbidden")), VM)
