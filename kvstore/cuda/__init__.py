"""CUDA for those who move bytes and those who map them: the few driver calls that are used, and memory.

It knows nothing of the rest of kvstore, so that the client may use it as well as the service does.
"""
