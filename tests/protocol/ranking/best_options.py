"""An autoscaler's choice among ranked options, as in worked cases."""

from __future__ import annotations

from collections.abc import Sequence

from protocol.ranking.rank import Option, Ranked


def best_options(ranked: Sequence[Ranked]) -> list[Option]:
    """The options that share the lowest rank; a further choice among them is the caller's."""
    return [one.option for one in ranked if one.rank == ranked[0].rank]
