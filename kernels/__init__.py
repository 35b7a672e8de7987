"""What runs on the tensors of a pool: paged attention, KV write, block copies. Knows nothing of kvstore."""
