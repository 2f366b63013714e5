"""The network program as the kubelet sees it: a resource of which each VM on the flat network takes one."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import grpc

from deploy.neonvm.devices.wire import Grant
from deploy.neonvm.objects.pod_form import FLAT_MOUNT, FLAT_RESOURCE
from deploy.neonvm.overlay.pod_resources import LIST, LIST_REQUEST, SOCKET, MalformedAnswerError, holders
from deploy.neonvm.overlay.taps import TapSockets
from deploy.neonvm.ports import NetworkError
from protocol.messages import ObjectName

COUNT: Final = 1000
"""More than a node has pods."""

_SECONDS: Final = 5.0  # for one call
_OPTIONS: Final = (("grpc.use_local_subchannel_pool", 1),)
"""Each call connects by itself: a shared subchannel would back off for long after a kubelet's restart."""


def grants(sockets: TapSockets, places: list[list[str]]) -> list[Grant]:
    """A folder with a socket of its own for each container that takes a place. Raises ``OSError``."""
    # A container asks for one place at most, so the first id is the only one.
    return [Grant(mounts={FLAT_MOUNT: str(sockets.make(ids[0]))} if ids else {}) for ids in places]


class PlaceHolders:
    """Asks the kubelet, at its socket in ``folder``, which pod has a place."""

    def __init__(self, folder: Path, resource: str = FLAT_RESOURCE) -> None:
        self._address = f"unix:{folder / SOCKET}"
        self._resource = resource

    async def __call__(self, place: str) -> ObjectName | None:
        """None unless it is exactly one. Raises ``NetworkError``."""
        async with grpc.aio.insecure_channel(self._address, options=_OPTIONS) as channel:
            call: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(LIST)
            try:
                pods = holders(await call(LIST_REQUEST, timeout=_SECONDS), self._resource, place)
            except grpc.aio.AioRpcError as error:
                story = f"{error.code().name}: {error.details()}"
                raise NetworkError(f"the kubelet does not say which pod has {place}: {story}") from error
            except MalformedAnswerError as error:
                raise NetworkError(str(error)) from error
        # A place that the kubelet has given to two pods at once, or to none yet, proves nothing.
        return pods[0] if len(pods) == 1 else None
