"""The agent's decisions: pure, without clocks, randomness or I/O.

``state.begin`` creates a ``State``, ``advance.advance`` applies an event to it, ``plan.plan`` returns the actions due
now, and ``explain.explain`` the reasons.
"""
