"""Which agents have to look at their guests in a step: all for whom a look can change anything (this makes it fast).

Rules that hold here:

- Where demand and size stay the same, what an agent says changes only when something leaves a window of its policy. So
  a change is looked at when it comes, and again when each window of the policy has passed it: its echoes.
- An echo can only make a VM smaller. Who has nothing to give back need not listen to it.
- An echo is looked at no earlier than it comes. It may come a step or two later than to an agent that looks all the
  time, because what the stages hold one after another adds up.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from agent.core.policy import Smoothing
from protocol.smoothing.spec import Span
from protocol.units import Seconds
from scripts.autoscale.simulate.tracks import Flags, Ints


def echoes(smoothing: Smoothing, step: Seconds) -> list[int]:
    """After how many steps a change is heard again: every window's length, and the longest one's after each other.

    A window shorter than a step has passed by the next one, and is within one of the others.
    """
    spans = {
        int(span // step) + 1
        for policy in (smoothing.cpu, smoothing.memory)
        for _, spec in policy.stages
        for span in (getattr(spec, name) for name in spec.__struct_fields__)
        if isinstance(span, Span) and span >= step
    }
    longest = max(spans, default=1)
    return sorted(spans | {longest + span for span in spans if span != longest})


class Attention:
    """Who has to look in which step. ``may_shrink`` is kept by whoever looks."""

    def __init__(self, count: int, after: Iterable[int]) -> None:
        self._after = list(after)
        self._rounds = max(self._after, default=0) + 1
        self._stirred = np.zeros((self._rounds, count), dtype=np.bool_)
        self._restless: set[int] = set(range(count))
        self.may_shrink = np.ones(count, dtype=np.bool_)

    def begin(self, step: int, is_new: Flags) -> Ints:
        """The agents to ask in this step. ``is_new``: their guests' demand has just changed."""
        stirred = self._stirred[step % self._rounds]
        stirred[:] = is_new
        heard = np.zeros_like(is_new)
        for after in self._after:
            heard |= self._stirred[(step - after) % self._rounds]
        who = is_new | (heard & self.may_shrink)
        who[list(self._restless)] = True
        self._restless.clear()
        return np.flatnonzero(who)

    def stir(self, step: int, vm: int) -> None:
        """The VM has another size or another agent since this step: it is looked at in the next, and echoes."""
        self._stirred[step % self._rounds, vm] = True
        self._restless.add(vm)

    def keep(self, vm: int) -> None:
        """The VM is looked at in the next step whatever happens."""
        self._restless.add(vm)
