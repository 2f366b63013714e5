"""The maxima of what was recommended, and the targets that follow from them."""

from __future__ import annotations

import pytest

from protocol.units import Bytes, MilliCpu
from scheduler_plugin.groups.core.tortoise.configuration import Configuration
from scheduler_plugin.groups.core.tortoise.horizontal import target_utilisation
from scheduler_plugin.groups.core.tortoise.tortoise_memory import learned
from scheduler_plugin.groups.core.workload import NOTHING, ContainerRecommendation, ResourceList


def said(target: ResourceList, upper: ResourceList = NOTHING) -> ContainerRecommendation:
    return ContainerRecommendation("app", target=target, upper=upper)


def test_resources_keep_own_maximum() -> None:
    known = ResourceList(MilliCpu(500), Bytes(100))
    new = said(ResourceList(MilliCpu(300), Bytes(30)), ResourceList(MilliCpu(600), Bytes(40)))
    assert learned(known, new) == ResourceList(MilliCpu(500), Bytes(30))


def test_without_an_upper_bound_a_maximum_only_rises() -> None:
    found = NOTHING
    for cpu in (300, 500, 200):
        found = learned(found, said(ResourceList(MilliCpu(cpu))))
    assert found == ResourceList(MilliCpu(500))


def test_what_is_left_out_stays() -> None:
    assert learned(ResourceList(MilliCpu(500), Bytes(1)), said(ResourceList(memory=Bytes(9)))) == ResourceList(
        MilliCpu(500), Bytes(9)
    )


@pytest.mark.parametrize(
    ("recommended", "current", "target"),
    [
        (800, 60, 80),  # 20 % of headroom for peaks
        (801, 60, 79),  # a part of a percent counts whole
        (500, 70, 70),  # less than is aimed at: nothing to learn
        (1000, 70, 70),
        (1800, 70, 70),  # far too small a container: no percentage comes of it
        (700, 70, 90),  # no headroom needed, but the cluster wants some
        (1040, 50, 65),  # more headroom than the cluster grants
    ],
)
def test_the_target_leaves_what_peaks_need_beyond_it(recommended: int, current: int, target: int) -> None:
    assert target_utilisation(MilliCpu(recommended), MilliCpu(1000), current, Configuration()) == target
