"""A kubelet as device plugins know it: it accepts registrations at its socket, and follows registered plugins."""

from __future__ import annotations

import asyncio
from pathlib import Path

import grpc

from deploy.neonvm.devices.wire import KUBELET_SOCKET, MESSAGES, SERVICE


class FakeKubelet:
    """One run of a kubelet. ``offered`` counts devices by resource; ``refuses`` is the error that plugins get."""

    def __init__(self, folder: Path, refuses: str = "", follows: bool = True) -> None:
        self._folder = folder
        self._refuses = refuses
        self._follows = follows
        self._server = grpc.aio.server(options=(("grpc.so_reuseport", 0),))
        self._watches: list[asyncio.Task[None]] = []
        self.registered: list[str] = []
        self.offered: dict[str, int] = {}

    async def __aenter__(self) -> FakeKubelet:
        """Remove all sockets, as a kubelet does at its start, and create its own."""
        for each in self._folder.glob("*.sock"):
            each.unlink()
        handler: grpc.RpcMethodHandler[bytes, bytes] = grpc.unary_unary_rpc_method_handler(self._register)
        handlers = grpc.method_handlers_generic_handler("v1beta1.Registration", {"Register": handler})
        self._server.add_generic_rpc_handlers((handlers,))
        self._server.add_insecure_port(f"unix:{self._folder / KUBELET_SOCKET}")
        await self._server.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        """It is killed."""
        for each in self._watches:
            each.cancel()
        await asyncio.gather(*self._watches, return_exceptions=True)
        await self._server.stop(None)

    async def _register(self, asked: bytes, context: grpc.aio.ServicerContext[bytes, bytes]) -> bytes:
        if self._refuses:
            await context.abort(grpc.StatusCode.UNKNOWN, self._refuses)
        request = MESSAGES["RegisterRequest"].FromString(asked)
        assert request.version == "v1beta1"  # type: ignore[attr-defined]
        resource, endpoint = request.resource_name, request.endpoint  # type: ignore[attr-defined]
        self.registered.append(resource)
        if self._follows:
            self._watches.append(asyncio.create_task(self._watch(resource, endpoint)))
        return b""

    async def _watch(self, resource: str, endpoint: str) -> None:
        async with grpc.aio.insecure_channel(f"unix:{self._folder / endpoint}") as channel:
            options: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(
                f"/{SERVICE}/GetDevicePluginOptions"
            )
            listed: grpc.aio.UnaryStreamMultiCallable[bytes, bytes] = channel.unary_stream(f"/{SERVICE}/ListAndWatch")
            assert await options(b"", wait_for_ready=True) == b""
            try:
                async for said in listed(b""):
                    devices = MESSAGES["ListAndWatchResponse"].FromString(said).devices  # type: ignore[attr-defined]
                    self.offered[resource] = sum(each.health == "Healthy" for each in devices)
            except grpc.aio.AioRpcError:
                pass
            self.offered.pop(resource, None)

    async def allocate(self, endpoint: str, *containers: list[str]) -> list[list[tuple[str, str, str]]]:
        """Devices of each container, as (path in it, path on the node, permissions)."""
        asked = MESSAGES["AllocateRequest"]()
        for ids in containers:
            asked.container_requests.add(devices_ids=ids)  # type: ignore[attr-defined]
        answer = await self.call(endpoint, "Allocate", asked.SerializeToString())
        given = MESSAGES["AllocateResponse"].FromString(answer).container_responses  # type: ignore[attr-defined]
        return [[(each.container_path, each.host_path, each.permissions) for each in one.devices] for one in given]

    async def call(self, endpoint: str, method: str, asked: bytes) -> bytes:
        """One call of the plugin's."""
        async with grpc.aio.insecure_channel(f"unix:{self._folder / endpoint}") as channel:
            called: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(f"/{SERVICE}/{method}")
            return await called(asked)
