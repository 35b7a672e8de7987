"""Refusals and bugs.

    KVStoreError            a refusal: somebody asked for what can't be had; nothing was changed
      FieldInvalid          FIELD_INVALID
      EngineExpired         ENGINE_EXPIRED
      SequenceUnknown       SEQUENCE_UNKNOWN
      StepGap               STEP_GAP
      StepChanged           STEP_CHANGED
      StepMixed             STEP_MIXED
      TenantRefused         TENANT
      LayoutMismatch        LAYOUT_MISMATCH
      Draining              DRAINING
      RevisionCompacted     REVISION_COMPACTED
      StoreNotMade          STORE_NOT_MADE
      TooManyEngines        TOO_MANY_ENGINES
      TooManyForgets        TOO_MANY_FORGETS
      PoolQuarantined       POOL_QUARANTINED
      PoolUnavailable       POOL_UNAVAILABLE
      ConfigInvalid         CONFIG_INVALID
      DiskInvalid           DISK_INVALID
      JournalInvalid        JOURNAL_INVALID
      TraceInvalid          TRACE_INVALID
    CheckFailed             a bug in the store: it must stop

A refusal names the field, its value and the remedy. Which gRPC code a reason has is the
server's affair (`server/errors.py`).
"""

from typing import ClassVar

__all__ = [
    "CheckFailed",
    "ConfigInvalid",
    "DiskInvalid",
    "Draining",
    "EngineExpired",
    "FieldInvalid",
    "JournalInvalid",
    "KVStoreError",
    "LayoutMismatch",
    "PoolQuarantined",
    "PoolUnavailable",
    "RevisionCompacted",
    "SequenceUnknown",
    "StepChanged",
    "StepGap",
    "StepMixed",
    "TenantRefused",
    "StoreNotMade",
    "TooManyEngines",
    "TooManyForgets",
    "TraceInvalid",
    "check",
    "plural",
]


class KVStoreError(Exception):
    """A refusal. `field` and `value` say what was wrong, `remedy` what to do about it."""

    reason: ClassVar[str]

    def __init__(self, message: str, *, field: str = "", value: object = "", remedy: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.field = field
        self.value = str(value)
        self.remedy = remedy

    def __str__(self) -> str:
        # What is empty or blank would not be seen.
        value = self.value if self.value.strip() else repr(self.value)
        where = f"{self.field} = {value}: " if self.field else ""
        return f"{where}{self.message}" + (f" ({self.remedy})" if self.remedy else "")


class FieldInvalid(KVStoreError):
    reason = "FIELD_INVALID"


class EngineExpired(KVStoreError):
    reason = "ENGINE_EXPIRED"


class SequenceUnknown(KVStoreError):
    reason = "SEQUENCE_UNKNOWN"


class StepGap(KVStoreError):
    reason = "STEP_GAP"


class StepChanged(KVStoreError):
    reason = "STEP_CHANGED"


class StepMixed(KVStoreError):
    reason = "STEP_MIXED"


class TenantRefused(KVStoreError):
    reason = "TENANT"


class LayoutMismatch(KVStoreError):
    reason = "LAYOUT_MISMATCH"


class Draining(KVStoreError):
    reason = "DRAINING"


class RevisionCompacted(KVStoreError):
    reason = "REVISION_COMPACTED"


class TooManyEngines(KVStoreError):
    reason = "TOO_MANY_ENGINES"


class StoreNotMade(KVStoreError):
    reason = "STORE_NOT_MADE"


class TooManyForgets(KVStoreError):
    reason = "TOO_MANY_FORGETS"


class PoolQuarantined(KVStoreError):
    reason = "POOL_QUARANTINED"


class PoolUnavailable(KVStoreError):
    reason = "POOL_UNAVAILABLE"


class ConfigInvalid(KVStoreError):
    reason = "CONFIG_INVALID"


class DiskInvalid(KVStoreError):
    reason = "DISK_INVALID"


class JournalInvalid(KVStoreError):
    reason = "JOURNAL_INVALID"


class TraceInvalid(KVStoreError):
    reason = "TRACE_INVALID"


class CheckFailed(Exception):
    """An invariant of the store does not hold. Not an error of any caller."""


def check(condition: object, message: str) -> None:
    """Raises `CheckFailed` unless `condition` holds; unlike `assert`, also under `python -O`."""
    if not condition:
        raise CheckFailed(message)


def plural(count: int, noun: str) -> str:
    """1 block, 2 blocks."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
