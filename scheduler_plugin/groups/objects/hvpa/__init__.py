"""``hvpas.autoscaling.k8s.io/v1alpha1``, read as the document writes it."""
