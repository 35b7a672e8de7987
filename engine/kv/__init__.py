"""Where an engine's KV is kept: by a kvstore service, or in memory of its own, to compare with."""
