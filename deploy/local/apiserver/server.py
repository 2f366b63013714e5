"""One API server over one data directory: what it is made of, and how it is run and stopped."""

from __future__ import annotations

import asyncio
import base64
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import yaml
from starlette.applications import Starlette

from deploy.local.apiserver.apimachinery.environment import Environment
from deploy.local.apiserver.apimachinery.errors import StatusError
from deploy.local.apiserver.apimachinery.jsonvalue import JsonObject
from deploy.local.apiserver.app import create_app
from deploy.local.apiserver.authn.identity import ADMIN, Authenticator, Identity
from deploy.local.apiserver.controllers.garbage_collector import GarbageCollector
from deploy.local.apiserver.registry.api import Api, RequestTarget, WriteOptions
from deploy.local.apiserver.resources.builtins import BUILTINS
from deploy.local.apiserver.resources.catalog import Catalog
from deploy.local.apiserver.routes.resource_routes import ApiServerSettings
from deploy.local.apiserver.storage.database import ObjectDatabase
from deploy.local.apiserver.storage.store import ObjectStore
from deploy.local.private_file import secret_file, write_private

HISTORY_LIMIT: Final = 4096
"""The number of changes of each resource that watches can go back."""

FIRST_NAMESPACES: Final = ("default", "kube-system", "kube-public", "kube-node-lease")


@dataclass(frozen=True, slots=True)
class ApiServer:
    """An API server that is ready to serve. Call ``close`` at the end."""

    app: Starlette
    api: Api
    authenticator: Authenticator
    garbage_collector: GarbageCollector
    closing: asyncio.Event

    async def run_controllers(self) -> None:
        """Runs the garbage collector until the server closes."""
        async with asyncio.TaskGroup() as tasks:
            # The collector never ends by itself.
            collecting = tasks.create_task(self.garbage_collector.run())
            await self.closing.wait()
            collecting.cancel()

    def stop_watches(self) -> None:
        """Ends every watch, so that connections can be closed."""
        self.closing.set()
        # A watch that waits for a change checks `closing` only when it wakes.
        self.api.store.wake_all()

    def close(self) -> None:
        """Closes the store."""
        self.api.store.close()


def build(
    data_dir: Path | None, tokens: Mapping[str, Identity], environment: Environment, settings: ApiServerSettings
) -> ApiServer:
    """An API server over ``data_dir`` (None: in memory) that accepts ``tokens``."""
    if data_dir is not None:
        data_dir.mkdir(parents=True, exist_ok=True)
    store = ObjectStore(ObjectDatabase(data_dir / "state.db" if data_dir else None), HISTORY_LIMIT)
    api = Api(store, Catalog(BUILTINS), environment)
    _create_namespaces(api)
    # Tokens of a server in memory need not outlive it.
    key = secret_file(data_dir / "signing.key") if data_dir else secrets.token_urlsafe(32)
    authenticator = Authenticator(store, environment, key.encode(), tokens)
    closing = asyncio.Event()
    app = create_app(api, authenticator, settings, closing)
    return ApiServer(app, api, authenticator, GarbageCollector(api), closing)


def _create_namespaces(api: Api) -> None:
    resource = api.catalog.by_key("namespaces")
    if resource is None:
        raise LookupError("the catalog has no namespaces")
    for name in FIRST_NAMESPACES:
        try:
            api.create(RequestTarget(resource), {"metadata": {"name": name}}, WriteOptions())
        except StatusError as error:
            # A store of an earlier run has them already.
            if error.reason != "AlreadyExists":
                raise


def write_kubeconfig(path: Path, url: str, token: str, authority: bytes | None) -> None:
    """A kubeconfig, readable by its owner alone, with which ``token`` reaches the server at ``url``.

    ``authority`` is the PEM certificate to trust; None for plain HTTP.
    """
    name = "local"
    cluster = {"server": url}
    if authority is not None:
        cluster["certificate-authority-data"] = base64.b64encode(authority).decode()
    config: JsonObject = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": name, "cluster": cluster}],
        "users": [{"name": "admin", "user": {"token": token}}],
        "contexts": [{"name": name, "context": {"cluster": name, "user": "admin", "namespace": "default"}}],
        "current-context": name,
    }
    write_private(path, yaml.safe_dump(config, sort_keys=False))


def admin_tokens(token: str) -> Mapping[str, Identity]:
    """The administrator's token, for ``build``."""
    return {token: ADMIN}
