"""The groups' own recommenders, for clusters that have neither VPA nor HPA: the same words come out of both."""
