"""The agent's decisions: pure, without clocks, randomness or I/O.

``state.begin`` creates a ``State``, ``advance.advance`` applies an event to it, ``plan.plan`` returns the actions that
are due, and ``explain.explain`` the reasons.
"""
