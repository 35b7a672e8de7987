"""Messages of one engine, for the tests of decoding and encoding."""

from kvstore.core.types import EngineId

__all__ = ["ENGINE", "NAME"]

ENGINE = EngineId("01234567-89ab-4cde-8f01-23456789abcd")
NAME = f"engines/{ENGINE}"
