"""kvstore: memory management for the KV cache of large language models, as a service of its own.

Nothing is imported here: an engine that wants `kvstore.client` must not load the server with it.
"""

__all__ = ["__version__"]

__version__ = "0.1.0"
