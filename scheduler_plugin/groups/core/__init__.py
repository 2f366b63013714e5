"""What decides for groups: pure policies over the shared words of ``workload``.

A policy is ``decide(spec, workload, recommendations, memory, now) -> (Decision, memory)``:

- The same input gives the same output. ``now`` is an aware ``datetime``: memory outlives the process, so it has dates.
- ``memory`` is all that a policy must not forget. It is written to the object's status.
- A decision says what to write. Wherever less than what was wanted is written, a ``Kept`` says by which rule.
"""
