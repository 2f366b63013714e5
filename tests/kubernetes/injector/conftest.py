"""All programs with TLS, on the cluster that the tests of a real Kubernetes share."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Final

import httpx2 as httpx
import pytest

from tests.kubernetes.injector.secured import Secured
from tests.kubernetes.injector.vm_pods import prepare
from tests.kubernetes.scheduling.stage import Stage

_NUMBERS: Final = itertools.count(1)


@pytest.fixture
def staged(api: httpx.Client) -> Iterator[Callable[[Secured], Stage]]:
    """Makes places for stories with VMs."""
    stages: list[Stage] = []

    def make(programs: Secured) -> Stage:
        made = Stage(api, programs, f"injected-{next(_NUMBERS)}")
        made.set_up()
        stages.append(made)
        prepare(made)
        return made

    yield make
    for each in stages:
        each.take_down()
