"""Generated from protos/kvstore/observe/v1: the format of the journal."""
