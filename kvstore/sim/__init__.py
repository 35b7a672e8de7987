"""The simulator: the real store under virtual time, on memory that knows what it should hold.

Nothing here runs a server, reads a clock or touches a device: a seed says all.
"""
