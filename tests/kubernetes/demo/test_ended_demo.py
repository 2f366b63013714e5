"""The demonstration on a real Kubernetes, up to a VM whose agent speaks; and its end, which leaves nothing behind."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.kubernetes.machine_state import machine_state

pytestmark = pytest.mark.kubernetes
IS_INSTALLED = re.compile("autoscaler: waiting for")
AGENT_SPEAKS = re.compile(r"\d s  1 cpu, 256Mi: \w+")
COMMAND = (sys.executable, "-m", "scripts.autoscale.main", "demo", "--kubernetes")


@pytest.mark.parametrize(
    ("at", "tell", "number"),
    [(AGENT_SPEAKS, os.kill, signal.SIGTERM), (IS_INSTALLED, os.killpg, signal.SIGINT)],
    ids=["SIGTERM when its VM boots", "Ctrl-C when it is installed"],
)
def test_interrupted_demo_leaves_nothing(
    home: Path, tmp_path: Path, at: re.Pattern[str], tell: Callable[[int, int], None], number: int
) -> None:
    """Ctrl-C on a terminal reaches the whole process group."""
    assert home.is_dir(), "there can be clusters on this machine"
    before = machine_state("demo", tmp_path)
    with started({**os.environ, "AUTOSCALE_HOME": str(tmp_path)}) as process:
        assert process.stdout is not None
        said = []
        for line in process.stdout:
            said.append(line)
            if at.search(line):
                break
        assert at.search(said[-1]), "".join(said)
        assert machine_state("demo", tmp_path).cgroups
        tell(process.pid, number)
        assert process.wait(timeout=180.0) == 128 + number
    assert machine_state("demo", tmp_path) == before


@contextmanager
def started(environment: dict[str, str]) -> Iterator[subprocess.Popen[str]]:
    """The demo, in its own process group."""
    with subprocess.Popen(
        COMMAND, env=environment, stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        try:
            yield process
        finally:
            process.terminate()
