def explain() -> None:
    """explain"""
