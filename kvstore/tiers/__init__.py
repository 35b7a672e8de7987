"""Where the bytes are and how they move. What should move, and why, is the core's affair."""
