"""Reads what the store does, and never takes part: the journal, its replay and its stories."""
