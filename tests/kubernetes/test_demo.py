"""The demonstration on a real Kubernetes, up to a VM whose agent speaks; and its end, which leaves nothing behind."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.kubernetes.machine_state import machine_state

pytestmark = pytest.mark.kubernetes
AGENT_SPEAKS = re.compile(r"\d s  1 cpu, 256Mi: \w+")
COMMAND = (sys.executable, "-m", "scripts.autoscale.main", "demo", "--kubernetes")


def test_a_demonstration_that_is_ended_when_its_vm_boots_leaves_nothing(home: Path, tmp_path: Path) -> None:
    assert home.is_dir(), "there can be clusters on this machine"
    before = machine_state("demo", tmp_path)
    environment = {**os.environ, "AUTOSCALE_HOME": str(tmp_path)}
    with subprocess.Popen(COMMAND, env=environment, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        said = []
        for line in process.stdout:
            said.append(line)
            if AGENT_SPEAKS.search(line):
                break
        assert AGENT_SPEAKS.search(said[-1]), "".join(said)
        assert machine_state("demo", tmp_path).cgroups
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=180.0) == 130
    assert machine_state("demo", tmp_path) == before
