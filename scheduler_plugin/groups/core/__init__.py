"""Pure policies of groups, with the common types of ``workload``.

A policy is ``decide(spec, workload, recommendations, memory, now) -> (decision, memory)``:

- Equal input gives equal output. ``now`` is an aware ``datetime``, because the memory survives the process.
- ``memory`` is everything that a policy must remember. It is stored in the object's status.
- A decision lists the changes to write. For each one that is withheld, a ``WithheldChange`` names the rule.
"""
