"""Allowlist of QMP commands that a runner pod passes on to QEMU (pure).

Unrestricted QMP can run programs and open files. The controller needs a few commands with a few arguments; some of them
are allowed only during a migration.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Final

from deploy.neonvm.addressing import MIGRATION_PORT
from deploy.neonvm.qemu.qemu_command import MEMORY_BLOCK
from deploy.neonvm.texts import runner as texts

Arguments = Mapping[str, object]


@dataclass(frozen=True, slots=True)
class GateState:
    """State of the pod when a command arrives. ``is_given``: its guest was handed over. ``receives``: it waits for an
    incoming migration. ``has_sent``: its guest was sent and is paused. ``is_open``: an outgoing migration has started
    and is undecided. ``has_certificate``: QEMU has the credentials of that migration, or of the incoming one.
    ``sleeps``: the guest is falling asleep, asleep or waking; ``leaves``: it is asleep and can be migrated.
    ``max_plugged``: the limit for plugged memory, in bytes.
    """

    is_given: bool = False
    receives: bool = False
    has_sent: bool = False
    is_open: bool = False
    has_certificate: bool = False
    sleeps: bool = False
    leaves: bool = False
    max_plugged: int = 0


_QUERIES: Final = frozenset(
    {
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
# Both ways in which clients name the virtio-mem device.
_DEVICES: Final = frozenset({"vm0", "/machine/peripheral/vm0"})
_CAPABILITIES: Final = frozenset({"auto-converge", "events", "late-block-activate", "return-path"})
_PARAMETERS: Final = frozenset({"downtime-limit", "max-bandwidth"})
_PAUSES: Final = frozenset({"initial", "max", "rounds", "step"})
# Milliseconds, or rounds, of `announce-self`.
_MAX_PAUSE: Final = 1000
# QEMU's own numbers are signed 64 bits.
_MAX_NUMBER: Final = 2**62


def _is_whole(value: object, most: int) -> bool:
    # In Python, True is an int.
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= most


def _no_arguments(arguments: Arguments, _: GateState) -> bool:
    return not arguments


def _extensions(arguments: Arguments, _: GateState) -> bool:
    # QEMU's client library enables every capability it is offered. OOB commands are refused anyway (see `refusal`).
    return arguments in ({}, {"enable": []}, {"enable": ["oob"]})


def _memory(arguments: Arguments, _: GateState) -> bool:
    return _is_memory(arguments, {"requested-size", "size"}) and arguments.keys() == {"path", "property"}


def _requested_memory(arguments: Arguments, state: GateState) -> bool:
    value = arguments.get("value")
    # virtio-mem plugs whole blocks only.
    is_fit = _is_whole(value, state.max_plugged) and isinstance(value, int) and not value % MEMORY_BLOCK.value
    is_of_memory = _is_memory(arguments, {"requested-size"})
    return is_fit and is_of_memory and arguments.keys() == {"path", "property", "value"}


def _is_memory(arguments: Arguments, properties: set[str]) -> bool:
    path, name = arguments.get("path"), arguments.get("property")
    return isinstance(path, str) and path in _DEVICES and isinstance(name, str) and name in properties


def _is_outgoing(arguments: Arguments, _: GateState) -> bool:
    # `inc`: also migrate the disk's changes relative to its backing file.
    return arguments.keys() <= {"uri", "inc"} and arguments.get("inc") in (None, True) and _is_pod(arguments.get("uri"))


def _is_incoming(arguments: Arguments, _: GateState) -> bool:
    return arguments.keys() == {"uri"} and _is_pod(arguments["uri"])


def _is_pod(uri: object) -> bool:
    scheme, _, address = str(uri).partition(":")
    host, _, port = address.rpartition(":")
    try:
        ip_address(host.removeprefix("[").removesuffix("]"))
    except ValueError:
        return False
    # No zone (`%eth0`): it would pick an interface of the pod. `exec:` and `fd:` run programs or use open files.
    return isinstance(uri, str) and scheme == "tcp" and port == str(MIGRATION_PORT) and "%" not in host


def _capabilities(arguments: Arguments, _: GateState) -> bool:
    value = arguments.get("capabilities")
    return arguments.keys() == {"capabilities"} and isinstance(value, list) and all(map(_is_capability, value))


def _is_capability(entry: object) -> bool:
    if not isinstance(entry, Mapping) or entry.keys() != {"capability", "state"}:
        return False
    name = entry["capability"]
    return isinstance(name, str) and name in _CAPABILITIES and isinstance(entry["state"], bool)


def _parameters(arguments: Arguments, _: GateState) -> bool:
    return arguments.keys() <= _PARAMETERS and all(_is_whole(amount, _MAX_NUMBER) for amount in arguments.values())


def _pauses(arguments: Arguments, _: GateState) -> bool:
    return arguments.keys() <= _PAUSES and all(_is_whole(amount, _MAX_PAUSE) for amount in arguments.values())


_CHECKS: Final[Mapping[str, Callable[[Arguments, GateState], bool]]] = {
    **dict.fromkeys(_QUERIES, _no_arguments),
    "announce-self": _pauses,
    "cont": _no_arguments,
    "migrate": _is_outgoing,
    "migrate-incoming": _is_incoming,
    "migrate-set-capabilities": _capabilities,
    "migrate-set-parameters": _parameters,
    "migrate_cancel": _no_arguments,
    "qmp_capabilities": _extensions,
    "qom-get": _memory,
    "qom-set": _requested_memory,
    "quit": _no_arguments,
}
"""The allowed commands, with the check of their arguments."""

_ANY_TIME: Final = _QUERIES | {"qmp_capabilities", "qom-get"}
"""Read-only commands. Any other may corrupt memory that is being saved or restored."""

_ASLEEP_COMMANDS: Final = _ANY_TIME | {
    "cont",
    "migrate",
    "migrate_cancel",
    "migrate-set-capabilities",
    "migrate-set-parameters",
    "quit",
}
"""Commands that a sleeping guest supports without QEMU."""

MIGRATION_COMMANDS: Final = frozenset({"cont", "migrate", "migrate-incoming", "quit"})
"""Commands that are allowed only in some states of QEMU."""


def refusal(message: object, state: GateState) -> str:
    """The reason why ``message`` is not passed on to QEMU; empty if it is."""
    # Refuse unknown keys as well: `exec-oob` also runs a command.
    if not isinstance(message, Mapping) or not message.keys() <= {"execute", "arguments", "id"}:
        return texts.NOT_QMP
    command, arguments = message.get("execute"), message.get("arguments", {})
    if not isinstance(command, str) or not isinstance(arguments, Mapping):
        return texts.NOT_QMP
    check = _CHECKS.get(command)
    if check is None:
        return texts.COMMAND_REFUSED.format(command=command)
    if not check(arguments, state):
        return texts.ARGUMENTS_REFUSED.format(command=command)
    if state.sleeps and command not in (_ASLEEP_COMMANDS if state.leaves else _ANY_TIME):
        return texts.SLEEPS
    return _state_refusal(command, state)


def _state_refusal(command: str, state: GateState) -> str:
    """The reason why ``command`` is refused in this state; empty if it is not."""
    match command:
        # Two running copies of a guest would corrupt the disk.
        case "cont" if state.is_given:
            return texts.MIGRATED_FOR_GOOD
        # The decision may still be for the target, which then runs.
        case "cont" if state.is_open:
            return texts.UNDECIDED
        case "migrate" if not (state.is_open and state.has_certificate):
            return texts.NO_MIGRATION
        case "migrate-incoming" if not (state.receives and state.has_certificate):
            return texts.NO_MIGRATION
        # A running guest is shut down with its pod.
        case "quit" if not (state.is_given or state.receives or state.has_sent):
            return texts.GUEST_RUNS_HERE
    return ""
