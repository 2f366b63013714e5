"""``hvpas.autoscaling.k8s.io/v1alpha1``, read as the document writes it."""

from scheduler_plugin.groups.objects.hvpa.decoding import Hvpa, HvpaError, decode
from scheduler_plugin.groups.objects.hvpa.memory_fields import memory_json, memory_of

__all__ = ["Hvpa", "HvpaError", "decode", "memory_json", "memory_of"]
