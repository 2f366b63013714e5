"""Questions of the Cluster Autoscaler as bytes, written field by field from the published numbers.

This does not use the code under test: a wrong field number there must not be able to hide here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping


def varint(value: int) -> bytes:
    """A number as protobuf writes it."""
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def field(number: int, value: bytes | str | int) -> bytes:
    """One field: a number, a text, or bytes (an embedded message among them)."""
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    body = value.encode() if isinstance(value, str) else value
    return varint(number << 3 | 2) + varint(len(body)) + body


def quantities(number: int, amounts: Mapping[str, str]) -> bytes:
    """A ``map<string, Quantity>``."""
    return b"".join(field(number, field(1, name) + field(2, field(1, text))) for name, text in amounts.items())


def container(*, always: bool = False, **requests: str) -> bytes:
    """A container with these requests; ``gpu`` is the amount of ``nvidia.com/gpu``, ``storage`` of local storage."""
    names = {"gpu": "nvidia.com/gpu", "storage": "ephemeral-storage"}
    named = {names.get(name, name): text for name, text in requests.items()}
    return field(8, quantities(2, named)) + (field(24, "Always") if always else b"")


def pod(
    name: str,
    *containers: bytes,
    initial: Iterable[bytes] = (),
    overhead: Mapping[str, str] | None = None,
    resources: Mapping[str, str] | None = None,
    uid: str = "",
) -> bytes:
    """A Pod in namespace ``default``; ``resources`` are requests of the pod as a whole."""
    meta = field(1, name) + field(3, "default") + (field(5, uid) if uid else b"")
    spec = b"".join(field(2, body) for body in containers) + b"".join(field(20, body) for body in initial)
    spec += quantities(32, overhead or {}) + (field(40, quantities(2, resources)) if resources else b"")
    return field(1, meta) + field(2, spec) + field(3, field(1, "Pending"))


def node(name: str, labels: Mapping[str, str], capacity: Mapping[str, str], allocatable: Mapping[str, str]) -> bytes:
    """A Node as a group's template."""
    meta = field(1, name) + b"".join(field(11, field(1, key) + field(2, value)) for key, value in labels.items())
    return (
        field(1, meta)
        + field(2, field(1, "10.0.0.0/24"))
        + field(3, quantities(1, capacity) + quantities(2, allocatable))
    )


def machine(kind: str, cpu: str, memory: str, gpus: int = 0) -> bytes:
    """A template of this instance type."""
    amounts = {"cpu": cpu, "memory": memory, "pods": "110"} | ({"nvidia.com/gpu": str(gpus)} if gpus else {})
    return node(f"template-{kind}", {"node.kubernetes.io/instance-type": kind}, amounts, {})


def option(group: str, nodes: int, pods: Iterable[bytes], *, legacy: bool = False) -> bytes:
    """One option; releases up to 1.34.1 put the pods into field 4."""
    body = field(1, group) + field(2, nodes) + field(3, "why not")
    return body + b"".join(field(4 if legacy else 5, each) for each in pods)


def question(options: Iterable[bytes], nodes: Mapping[str, bytes], *, legacy: bool = False) -> bytes:
    """A whole ``BestOptionsRequest``; releases up to 1.34.1 put the nodes into field 2."""
    entries = (field(2 if legacy else 3, field(1, group) + field(2, body)) for group, body in nodes.items())
    return b"".join(field(1, each) for each in options) + b"".join(entries)


def groups_of(answer: bytes) -> list[str]:
    """The groups named by a ``BestOptionsResponse``."""
    return [text.decode() for body in fields_of(answer, 1) for text in fields_of(body, 1)]


def fields_of(message: bytes, wanted: int) -> list[bytes]:
    """All length-delimited values of field ``wanted``."""
    found, at = [], 0
    while at < len(message):
        key, at = _read_varint(message, at)
        if key & 7 == 0:
            _, at = _read_varint(message, at)
            continue
        length, at = _read_varint(message, at)
        if key >> 3 == wanted:
            found.append(message[at : at + length])
        at += length
    return found


def _read_varint(message: bytes, at: int) -> tuple[int, int]:
    value, shift = 0, 0
    while message[at] & 0x80:
        value, shift, at = value | (message[at] & 0x7F) << shift, shift + 7, at + 1
    return value | message[at] << shift, at + 1
