"""Recording a cluster, and what is asked of the record."""
