"""Statuses of pods, written to the API for the very pod that they are about."""

from __future__ import annotations

import logging
from typing import Final

from deploy.kube.client import ApiClient
from protocol.backoff import Backoff, Retries
from protocol.kubernetes.api import ApiRefusedError, ApiUnknownError
from protocol.kubernetes.objects import Json, name_of, uid_of
from protocol.kubernetes.refusals import RefusalKind
from protocol.kubernetes.resources import PODS
from protocol.runtime.clock import Clock
from protocol.units import Seconds

_BACKOFF: Final = Backoff(Seconds(1.0), Seconds(30.0))

_log = logging.getLogger(__name__)


async def write_status(client: ApiClient, pod: Json, status: Json) -> None:
    """Writes a status once. Raises ``ApiUnknownError``, or ``ApiRefusedError`` if refused for a pod that exists."""
    # If a new pod has the name meanwhile, its uid differs, and the API server refuses the status with a conflict.
    body: Json = {"metadata": {"uid": uid_of(pod)}, "status": status}
    try:
        await client.merge_patch(PODS, name_of(pod), body, "status")
    except ApiRefusedError as error:
        if error.kind is RefusalKind.NOT_FOUND:
            return
        # A conflict may mean that another pod has the name now; then nobody needs this status any more.
        if error.kind is not RefusalKind.CONFLICT or await _is_there(client, pod):
            raise


async def keep_writing_status(client: ApiClient, pod: Json, status: Json, clock: Clock) -> None:
    """Writes a status, with retries until the API accepts it; the pod keeps running meanwhile."""
    retries = Retries(_BACKOFF)
    while True:
        try:
            await write_status(client, pod, status)
        except ApiRefusedError as error:
            # Logged once: retries mostly fail for the same reason.
            if not retries.failures:
                fields = {"pod": str(name_of(pod)), "reason": str(error)}
                _log.warning("the API refuses a pod's status, which is written again", extra=fields)
        except ApiUnknownError:
            # An API server that is restarting is expected to come back.
            pass
        else:
            return
        await clock.sleep(retries.failed(clock.jitter()))


async def _is_there(client: ApiClient, pod: Json) -> bool:
    try:
        return uid_of(await client.get(PODS, name_of(pod))) == uid_of(pod)
    except ApiRefusedError as error:
        if error.kind is RefusalKind.NOT_FOUND:
            return False
        raise
