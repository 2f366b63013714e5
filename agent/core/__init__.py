"""The agent's decisions, free of clocks, randomness, input and output.

The entry points: ``state.begin`` makes a ``State``, ``advance.advance`` takes an event into it, ``plan.plan`` says what
to do now, and ``explain.explain`` says why.
"""
