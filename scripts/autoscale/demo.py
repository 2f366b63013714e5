def demo() -> None:
    """demo"""
