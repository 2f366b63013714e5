"""The groups' own recommenders, for clusters without VPA and HPA controllers. They return the same types."""
