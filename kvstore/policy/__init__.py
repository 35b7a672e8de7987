"""Policies: asked by the core through `kvstore.core.ports`, never acting themselves."""
