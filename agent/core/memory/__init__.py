"""Memory that a VM needs beyond what its programs use: the working set in the page cache (B.16).

``memory_view`` turns a guest's page into one look, ``rereading`` measures the cost since the last look and its trend.
``trials`` has the states of probing with their verdicts, ``probing`` the table of what follows from them,
``working_set`` what was learned, and ``memory_sentences`` explains it.
"""
