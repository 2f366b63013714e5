"""A small Kubernetes API server: what the local cluster stores its objects in, and tests speak to.

It is frozen (decision 4): behavior that a test can check on a real API server is not added here.

Packages, each importing only those above it in this list:

- ``apimachinery``: JSON values, refusals (``Status``), names, selectors, JSONPath, media types
- ``schema``: structural schemas and CEL rules; ``resources``: the kinds of objects; ``storage``: objects and history
- ``authn``: tokens and identities; ``registry``: the verbs and the rules of each kind; ``patch``: the kinds of patches
- ``controllers``: garbage collection; ``discovery``: groups and OpenAPI
- ``routes``: HTTP to verbs and back; ``server``, ``__main__``: the process
"""
