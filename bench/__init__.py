"""Measurements behind the claims of the README: `python -m bench.NAME [--json] [--quick]`."""
