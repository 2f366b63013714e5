"""Decoding of ``hvpas.autoscaling.k8s.io/v1alpha1``."""
