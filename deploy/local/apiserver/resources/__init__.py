"""The served resources: built-in ones and those of CRDs. Pure."""
