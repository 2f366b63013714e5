"""The working set in the page cache: memory that a VM needs beyond what its programs use (B.16).

``memory_view`` extracts a view from a sample, ``rereading`` computes the cost of cache misses. ``probing`` is the state
machine, ``trials`` defines its states and verdicts, ``working_set`` its results, and ``memory_sentences`` explains it.
"""
