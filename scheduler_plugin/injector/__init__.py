"""``autoscale-injector``: injects agents into VM pods and manages our certificates (B.4, B.13).

- ``admission`` handles AdmissionReviews of new pods.
- ``certificates`` issues and publishes certificates, in the replica that holds the Lease.
"""
