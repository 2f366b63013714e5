"""One valid request and its parts, for the tests of the wire."""

from __future__ import annotations

import json

from protocol.units import Bytes
from protocol.versions import ProtocolVersion

SLOT = Bytes(1024**3)


def request(version: int, **changes: object) -> dict[str, object]:
    """A valid request of ``version``, with whole fields replaced; a field that is ``...`` is left out."""
    by_bytes = version >= ProtocolVersion.V4_0
    whole: dict[str, object] = {
        "protoVersion": version,
        "pod": {"namespace": "default", "name": "pg-1"},
        "resources": {"vCPUs": 2, "mem": "3Gi" if by_bytes else 3},
        "metrics": {"loadAvg1M": 0.5, "loadAvg5M": 0.25, "memoryUsageBytes": 1048576.0},
    }
    if version >= ProtocolVersion.V2_1:
        whole["lastPermit"] = None
    if by_bytes:
        whole["computeUnit"] = {"vCPUs": "250m", "mem": "1Gi"}
    return {key: value for key, value in {**whole, **changes}.items() if value is not ...}


def body(version: int, **changes: object) -> bytes:
    """The same as JSON."""
    return json.dumps(request(version, **changes)).encode()
