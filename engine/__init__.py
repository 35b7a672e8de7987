"""The reference inference engine: it knows the service by `kvstore.client` alone."""
