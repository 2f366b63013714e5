"""What a custom resource's schema asks of its objects: types, bounds, patterns and CEL rules. Pure."""
