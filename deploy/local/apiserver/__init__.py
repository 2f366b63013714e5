"""A small Kubernetes API server: what the local cluster stores its objects in, and tests speak to.

Layers, each knowing only those above it in this list:

- pure: ``jsonvalue``, ``errors``, ``names``, ``selectors``, ``jsonpath``, ``cel``, ``rules``, ``validation``,
  ``schema``, ``patch``, ``resources``, ``builtins``, ``definitions``, ``columns``, ``tokens``
- state: ``history``, ``journal``, ``store``, ``catalog``
- rules: ``metadata``, ``strategies``, ``api`` (the verbs), ``listing``, ``watching``, ``subresources``, ``identity``,
  ``reviews``, ``dependents`` and ``janitor``
- edge: ``requests``, ``changes``, ``responses``, ``discovery``, ``openapi``, ``resource_routes``,
  ``discovery_routes``, ``app``, ``certificates``, ``server``, ``serving``, ``__main__``
"""
