"""The contract as code, generated from protos/ by `make protos`; only this file is written by hand."""
