"""Sentences on scarcity, for ``explain``, ``top`` and the page (B.17)."""

from __future__ import annotations

from datetime import datetime

import pytest

from protocol.kubernetes.objects import Json
from scheduler_plugin.dashboard.core.scarcity import freed_room_sentence, node_waiting_sentence, waiting_sentence

AT = "2026-01-01T00:00:00Z"
LOCAL = f"{datetime.fromisoformat(AT).astimezone():%H:%M %Z}"
WAITS: Json = {"denied": {"cpu": "2", "mem": "1Gi"}, "promised": {"cpu": "1500m", "mem": "0"}}
SATISFIED: Json = {"denied": {"cpu": "0", "mem": "0"}, "promised": {"cpu": "0", "mem": "0"}}


@pytest.mark.parametrize(
    ("gift", "sentence"),
    [
        ({"to": ["default/a"]}, f"gave back 1 vCPU and 1 GiB to a at {LOCAL}"),
        ({"to": ["default/a", "shop/b", 7]}, f"gave back 1 vCPU and 1 GiB to a and shop/b at {LOCAL}"),
        ({"to": []}, f"gave back 1 vCPU and 1 GiB to its nearly full node at {LOCAL}"),
        ({"to": None}, f"gave back 1 vCPU and 1 GiB to its nearly full node at {LOCAL}"),
        ({"to": [], "amount": {"cpu": "much"}}, f"gave back nothing to its nearly full node at {LOCAL}"),
        ({"at": "yesterday"}, ""),
    ],
)
def test_gift_names_receivers_and_local_time(gift: Json, sentence: str) -> None:
    whole = {"amount": {"cpu": "1", "mem": "1Gi"}, "at": AT, **gift}
    assert freed_room_sentence({"gaveBack": whole}, "default") == sentence
    assert freed_room_sentence({"gaveBack": None}, "default") == ""


@pytest.mark.parametrize(
    ("pod", "sentence"),
    [
        (WAITS, "waiting for 2 vCPU and 1 GiB, 1.5 vCPU promised by neighbours"),
        ({**WAITS, "promised": {}}, "waiting for 2 vCPU and 1 GiB, nothing promised by neighbours"),
        ({"denied": WAITS["denied"]}, "waiting for 2 vCPU and 1 GiB"),
        (SATISFIED, ""),
    ],
)
def test_denied_vm_says_what_is_promised(pod: Json, sentence: str) -> None:
    assert waiting_sentence(pod) == sentence


def test_node_sums_up_its_denied_vms() -> None:
    one, two = ({**WAITS, "pods": [WAITS, SATISFIED]}, {**WAITS, "pods": [WAITS, WAITS]})
    assert [
        node_waiting_sentence(node) for node in (one, two, {"pods": [WAITS]}, {**SATISFIED, "pods": [SATISFIED]})
    ] == [
        "1 database waiting for 2 vCPU and 1 GiB, 1.5 vCPU promised by neighbours",
        "2 databases waiting for 2 vCPU and 1 GiB, 1.5 vCPU promised by neighbours",
        "",
        "",
    ]
