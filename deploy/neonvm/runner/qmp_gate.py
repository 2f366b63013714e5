"""Which commands of QEMU's monitor a runner pod passes on, and which it refuses (pure).

QEMU's monitor runs programs and opens files for all that may speak to it. The controller needs a few of its commands,
and only these are offered. A guest that was given away is never continued here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from deploy.neonvm.addressing import MIGRATION_PORT

Arguments = Mapping[str, object]

_ASKING: Final = frozenset(
    {
        "qmp_capabilities",
        "query-commands",
        "query-cpus-fast",
        "query-hotpluggable-cpus",
        "query-memory-devices",
        "query-memory-size-summary",
        "query-migrate",
        "query-migrate-parameters",
        "query-status",
        "query-version",
    }
)
_FREE: Final = frozenset(
    {
        "announce-self",
        "cont",
        "migrate-set-capabilities",
        "migrate_cancel",
        "quit",
        "system_powerdown",
    }
)
_DEVICES: Final = frozenset({"vm0", "/machine/peripheral/vm0"})
_PARAMETERS: Final = frozenset(
    {
        "auto-converge",
        "downtime-limit",
        "max-bandwidth",
        "multifd-compression",
        "tls-creds",
        "tls-hostname",
        "xbzrle-cache-size",
    }
)


def _of_memory(arguments: Arguments) -> bool:
    return arguments.get("path") in _DEVICES and arguments.get("property") in {"requested-size", "size"}


def _of_requested_memory(arguments: Arguments) -> bool:
    return arguments.get("path") in _DEVICES and arguments.get("property") == "requested-size"


def _to_a_pod(arguments: Arguments) -> bool:
    scheme, _, place = str(arguments.get("uri", "")).partition(":")
    return scheme == "tcp" and place.endswith(f":{MIGRATION_PORT}") and "," not in place


_BOUND: Final[Mapping[str, Callable[[Arguments], bool]]] = {
    "migrate": _to_a_pod,
    "migrate-incoming": _to_a_pod,
    "migrate-set-parameters": lambda arguments: arguments.keys() <= _PARAMETERS,
    "qom-get": _of_memory,
    "qom-set": _of_requested_memory,
}
"""Commands that are passed on with some arguments only."""


def refusal(message: object, is_given: bool) -> str:
    """Why ``message`` is not passed on to QEMU; empty where it is."""
    if not isinstance(message, Mapping) or not message.keys() <= {"execute", "arguments", "id"}:
        return "this is no command"
    command, arguments = message.get("execute"), message.get("arguments", {})
    if not isinstance(command, str) or not isinstance(arguments, Mapping):
        return "this is no command"
    if is_given and command == "cont":
        return "the guest was given away and never runs here again"
    if command in _ASKING or command in _FREE:
        return ""
    fits = _BOUND.get(command)
    if fits is None:
        return f"{command} is not offered by this pod"
    return "" if fits(arguments) else f"{command} is not offered by this pod with these arguments"
