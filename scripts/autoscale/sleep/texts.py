"""Texts of ``autoscale sleep`` and ``autoscale wake``: templates for ``str.format``, whose fields mypy checks."""

from __future__ import annotations

from typing import Final

from protocol.names import LABEL_ENABLED

# Refusals

NOT_ENABLED: Final = (
    f'{{vm}} is not enabled for autoscaling (label {LABEL_ENABLED}: "true"); only enabled VMs can sleep'
)
NO_FLAT_ADDRESS: Final = (
    "{vm} cannot sleep: it has no flat-network address (spec.extraNetwork.enable: true), so its sessions would break"
)
NOT_RUNNING: Final = "{vm} cannot sleep: it is {phase}, not Running"
GONE: Final = "{vm} has been deleted"

# Results

SLEEPS: Final = "{name} is asleep: {sessions} open, {saved} saved, took {seconds}"
SLEEPS_ALREADY: Final = "{name} is already asleep{since}"
REFUSED: Final = "{name} refused to sleep: {message}"
REPLACED: Final = "{name} is not asleep: the order was removed or replaced"
WOKEN_AGAIN: Final = "{name} fell asleep and was woken again: {message}"
AWAKE: Final = "{name} is awake after {seconds}"
AWAKE_ALREADY: Final = "{name} is already awake"
WITHDRAWN: Final = "{name} is awake; removed its pending order to sleep"
RESTARTED: Final = "{name} booted from its disk and lost its sessions: {message}"
NO_REASON: Final = "no reason given"

# Progress

ORDERED: Final = "ordered {name} to sleep"
ASKED_TO_WAKE: Final = "ordered {name} to wake"
PROGRESS: Final = "{name} is {phase}"
ASKS_TO_WAKE: Final = "{name} is Waking: {message}"
_ORDER_REMAINS: Final = "The order remains; remove it with: autoscale wake {vm}"
NOT_ANSWERED: Final = (
    "no response from neonvm-controller within {limit}. Is it running, and does its release support sleep? "
    f"The original NeonVM does not. {_ORDER_REMAINS}"
)
STILL: Final = "{name} is still {phase} after {limit}; for the reason: autoscale explain {vm}"
STILL_RESIZED: Final = f"{{name}} is still being resized after {{limit}}, and sleeps after that. {_ORDER_REMAINS}"
STILL_MIGRATED: Final = f"{{name}} is still being migrated after {{limit}}, and sleeps after that. {_ORDER_REMAINS}"
