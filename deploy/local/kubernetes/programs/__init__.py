"""The programs and images of a real cluster: their versions, and how they are built and cached."""
