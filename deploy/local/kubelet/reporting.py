"""Writes pod statuses, with the pod's uid as precondition."""

from __future__ import annotations

import logging
from typing import Final

from deploy.kube.client import ApiClient
from protocol.backoff import Backoff, Retries
from protocol.kubernetes.api import ApiRefusedError, ApiUnknownError, Tolerating
from protocol.kubernetes.objects import Json, name_of, uid_of
from protocol.kubernetes.refusals import RefusalKind
from protocol.kubernetes.resources import PODS
from protocol.runtime.clock import Clock
from protocol.units import Seconds

_BACKOFF: Final = Backoff(Seconds(1.0), Seconds(30.0))

_log = logging.getLogger(__name__)


async def write_status(client: ApiClient, pod: Json, status: Json) -> None:
    """Write a status once; no effect if the pod is gone. Raises ``ApiUnknownError`` and ``ApiRefusedError``."""
    # If a new pod with the same name exists, its uid differs, and the API server returns a conflict.
    body: Json = {"metadata": {"uid": uid_of(pod)}, "status": status}
    try:
        await client.merge_patch(PODS, name_of(pod), body, "status")
    except ApiRefusedError as error:
        if error.kind is RefusalKind.NOT_FOUND:
            return
        if error.kind is not RefusalKind.CONFLICT or await _exists(client, pod):
            raise


async def keep_writing_status(client: ApiClient, pod: Json, status: Json, clock: Clock) -> None:
    """Write a status; retry until the API server accepts it."""
    retries = Retries(_BACKOFF)
    while True:
        try:
            await write_status(client, pod, status)
        except ApiRefusedError as error:
            # Logged once: retries usually fail for the same reason.
            if not retries.failures:
                fields = {"pod": str(name_of(pod)), "reason": str(error)}
                _log.warning("the API server rejects a pod's status; retrying", extra=fields)
        except ApiUnknownError:
            pass  # the API server may be restarting
        else:
            return
        await clock.sleep(retries.failed(clock.jitter()))


async def _exists(client: ApiClient, pod: Json) -> bool:
    with Tolerating(RefusalKind.NOT_FOUND):
        return uid_of(await client.get(PODS, name_of(pod))) == uid_of(pod)
    return False
