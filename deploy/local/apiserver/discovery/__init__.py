"""What the server tells about its kinds: groups, versions and OpenAPI documents. Pure."""
