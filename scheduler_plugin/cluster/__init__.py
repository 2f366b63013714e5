"""The Kubernetes API as the scheduler sees it: list and watch, translation into facts, and the few writes it makes."""
