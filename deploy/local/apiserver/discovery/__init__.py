"""Discovery of the served resources: groups, versions and OpenAPI documents. Pure."""
