"""``autoscale-injector``: puts the agent into the pods of VMs, and keeps our certificates (B.4, B.13).

- ``admission`` answers the API server's question about a new pod.
- ``certificates`` makes authorities and certificates and hands them out, in the replica that holds the Lease.
"""
