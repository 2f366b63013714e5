"""Recording a cluster, and where its record is."""
