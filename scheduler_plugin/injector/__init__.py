"""``autoscale-injector``: puts the agent into the pods of VMs, and keeps our certificates (B.4, B.13).

- ``admission`` answers the API server's question about a new pod: what is decided there has no clock and no network.
- ``certificates`` makes authorities and certificates and hands them out; only the replica that holds the Lease does.
"""
