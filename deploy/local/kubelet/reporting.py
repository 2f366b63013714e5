"""Statuses of pods, written to the API for the very pod that they are about.

Rules that hold here:

- A status names the pod's uid: a pod of the same name that has come since never gets it.
- A pod that is gone, or whose name another pod has, needs no status.
"""

from __future__ import annotations

import logging
from typing import Final

from deploy.kube.client import ApiClient, ApiUnavailableError, KubeApiError
from protocol.backoff import Backoff, Retries
from protocol.kubernetes.objects import Json, name_of, uid_of
from protocol.kubernetes.refusals import RefusalKind
from protocol.kubernetes.resources import PODS
from protocol.runtime.clock import Clock
from protocol.units import Seconds

_BACKOFF: Final = Backoff(Seconds(1.0), Seconds(30.0))

_log = logging.getLogger(__name__)


async def write_status(client: ApiClient, pod: Json, status: Json) -> None:
    """Writes it once. Raises ``ApiUnavailableError``, and ``KubeApiError`` if it is refused for a pod that is there."""
    body: Json = {"metadata": {"uid": uid_of(pod)}, "status": status}
    try:
        await client.merge_patch(PODS, name_of(pod), body, "status")
    except KubeApiError as error:
        if error.kind is RefusalKind.NOT_FOUND:
            return
        if error.kind is not RefusalKind.CONFLICT or await _is_there(client, pod):
            raise


async def keep_writing_status(client: ApiClient, pod: Json, status: Json, clock: Clock) -> None:
    """Writes it, again and again until the API takes it: what runs goes on running meanwhile."""
    retries = Retries(_BACKOFF)
    while True:
        try:
            await write_status(client, pod, status)
        except KubeApiError as error:
            if not retries.failures:
                told = {"pod": str(name_of(pod)), "reason": str(error)}
                _log.warning("the API refuses a pod's status, which is written again", extra=told)
        except ApiUnavailableError:
            pass
        else:
            return
        await clock.sleep(retries.failed(clock.jitter()))


async def _is_there(client: ApiClient, pod: Json) -> bool:
    try:
        return uid_of(await client.get(PODS, name_of(pod))) == uid_of(pod)
    except KubeApiError as error:
        if error.kind is RefusalKind.NOT_FOUND:
            return False
        raise
