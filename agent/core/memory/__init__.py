"""Memory that a VM needs beyond what its programs use: the working set in the page cache (B.16).

``memory_view`` makes one look of a guest's page, ``rereading`` says what the time since the last one cost, ``trend``
what becomes of that, ``probing`` tries sizes, ``trials`` judges them, ``working_set`` is what was learned, and
``memory_sentences`` tells it.
"""
