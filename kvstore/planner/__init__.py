"""The planner: what a machine with tiers of given sizes would make of a trace, in virtual time.

The store and the policies are the real ones; engines, links and the clock are modelled. Nothing here runs
a server.
"""
