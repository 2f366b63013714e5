"""Discovery of the kinds that are served: groups, versions and OpenAPI documents. Pure."""
