"""A small Kubernetes API server: what the local cluster stores its objects in, and tests speak to.

Layers, each knowing only those above it in this list:

- pure: ``jsonvalue``, ``errors``, ``names``, ``selectors``, ``jsonpath``, ``schema``, ``patch``, ``resources``, ``columns``, ``tokens``
- state: ``history``, ``journal``, ``store``, ``catalog``
- rules: ``metadata``, ``strategies``, ``api`` (the verbs), ``subresources``, ``reviews``, ``dependents`` and ``janitor``
- edge: ``requests``, ``responses``, ``watching``, ``discovery``, ``openapi``, ``app``, ``__main__``
"""
