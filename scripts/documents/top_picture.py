"""``python -m scripts.documents.top_picture``: writes docs/top.svg, a screenshot of ``autoscale top``."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from protocol.kubernetes.objects import Json
from scripts.autoscale.top.app import TopApp
from scripts.autoscale.top.fleet import FleetSnapshot
from scripts.autoscale.top.rows import vm_row

PICTURE: Final = Path(__file__).resolve().parents[2] / "docs" / "top.svg"
_SIZE: Final = (128, 19)
_NAMES: Final = ("customers", "stock", "search", "orders")
_BECAUSE: Final = "sized for memory used"
_WEB_FONTS: Final = re.compile(r"@font-face \{.*?\}\s*", re.DOTALL)
_FAMILY: Final = re.compile(r"font-family: Fira Code, monospace")

FLEET: Final = (  # milli-vCPUs, milli-vCPUs busy, GiB
    (1000, 310, 4), (2000, 420, 1), (500, 190, 3), (500, 130, 3), (1500, 970, 1), (1500, 380, 1), (4000, 2660, 3),
    (1000, 220, 3), (4000, 2830, 3), (500, 350, 3), (4000, 1490, 2), (1000, 270, 3), (500, 380, 3), (500, 370, 3),
)  # fmt: skip
_DENIED: Final = 2
_MOVES: Final = 5


class PictureFleet:
    """A constant fleet for the screenshot."""

    title = "context 'production'"

    async def read(self, on_screen: Sequence[str]) -> FleetSnapshot:  # noqa: ARG002 - a part of the port
        """See ``Source``."""
        return FleetSnapshot(tuple(vm_row(*_made(number)) for number in range(len(FLEET))))

    async def explain(self, vm: str) -> list[str]:
        """See ``Source``."""
        return [vm]

    def question(self, vm: str) -> str:
        """See ``Source``."""
        return vm

    async def move(self, vm: str) -> str:
        """See ``Source``."""
        return vm


def _made(number: int) -> tuple[Json, Json, Json, Json | None]:
    """A VM's object, the explanations of its agent and the scheduler, and its migration."""
    cpu, busy, gib = FLEET[number]
    name, namespace = f"{_NAMES[number % len(_NAMES)]}-{number + 1}", "shop" if number < 8 else "billing"
    size = {"cpu": f"{cpu // 1000}" if cpu % 1000 == 0 else f"{cpu}m", "mem": f"{gib}Gi"}
    vm: Json = {
        "metadata": {"namespace": namespace, "name": name},
        "status": {
            "phase": "Running",
            "node": f"node-{number % 3 + 1}",
            "cpus": size["cpu"],
            "memorySize": size["mem"],
        },
    }
    agent: Json = {
        "because": _BECAUSE,
        "metrics": {"cores_busy": busy / 1000, "mem_used": f"{gib * 700}Mi"},
        "goal": {"cpu": f"{busy * 13 // 10}m"},
        "permit": size,
        **({"denied": {"by": "scheduler"}} if number == _DENIED else {}),
    }
    return vm, agent, {}, _move(namespace, name) if number == _MOVES else None


def _move(namespace: str, name: str) -> Json:
    return {
        "metadata": {"namespace": namespace, "name": f"{name}-1"},
        "spec": {"vmName": name},
        "status": {
            "phase": "Running",
            "sourceNode": "node-3",
            "targetNode": "node-1",
            "info": {"ram": {"total": 100, "remaining": 25, "transferred": 75}},
        },
    }


async def drawn() -> str:
    """The screenshot as SVG, without web fonts."""
    # A long interval: a second refresh would make the picture depend on time.
    app = TopApp(PictureFleet(), every=3600.0)
    async with app.run_test(size=_SIZE) as pilot:
        await app.refresh_once()
        await pilot.pause()
        picture = app.export_screenshot(title="autoscale top")
    # Rich embeds links to web fonts.
    return _FAMILY.sub("font-family: DejaVu Sans Mono, monospace", _WEB_FONTS.sub("", picture)).strip() + "\n"


def main() -> None:
    """Write the picture."""
    PICTURE.write_text(asyncio.run(drawn()))


if __name__ == "__main__":
    main()
