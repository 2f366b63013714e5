"""The shell of groups: the caches, the loop that brings each group to where it should be, and the writes."""
