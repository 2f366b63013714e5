"""The served resources: built-in ones and custom resources. Pure."""
