"""What decides for groups: pure policies over the shared words of ``workload``.

A policy is ``decide(spec, workload, recommendations, memory, now) -> (decision, memory)``:

- The same input gives the same output. ``now`` is an aware ``datetime``, because the memory outlives the process.
- ``memory`` is all that a policy must not forget. It is written to the object's status.
- A decision says what to write. If that is less than was wanted, a ``WithheldChange`` says by which rule.
"""
