"""Who may speak to a runner pod, how that is proven, and how a runner pod proves which pod it is (decision 34)."""
