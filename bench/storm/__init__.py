"""A load test of the engine's server: many clients who come, go, fail and stay (`bench.serving_storm`)."""
