"""The nodes' side of the local cluster: pods that are bound to a node become guests with an agent beside them."""
