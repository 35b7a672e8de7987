"""Stands before LMDB: whoever inherits from it is asked whenever an index file is made and a commit is made.

LMDB's own types can't be changed, so the tier gets objects that look like its environments and write
transactions; what only reads goes through as it is.
"""

import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

import lmdb
import pytest

__all__ = ["DATA_FILE", "LmdbDoor"]

DATA_FILE = "data.mdb"


class LmdbDoor:
    """Stands for the module. For environments in `folder`, and those opened for writing alone."""

    def __init__(self, folder: Path) -> None:
        self._folder = Path(os.path.realpath(folder))

    def stand(self, patch: pytest.MonkeyPatch) -> None:
        """Wherever the tiers know LMDB by name."""
        for name, module in list(sys.modules.items()):
            if name.startswith("kvstore.tiers") and getattr(module, "lmdb", None) is lmdb:
                patch.setattr(module, "lmdb", self)

    def opening(self, do: Callable[[], Any]) -> Any:
        """Must call `do`, which opens or makes the environment, and return what it returns."""
        return do()

    def committing(self, env: Any, do: Callable[[], Any]) -> Any:
        """Must call `do`, which commits, and return what it returns. One at a time."""
        return do()

    def copying(self, path: Path, do: Callable[[], Any]) -> Any:
        """Must call `do`, which writes a copy of the index to this file."""
        return do()

    def __getattr__(self, name: str) -> Any:
        return getattr(lmdb, name)

    def open(self, path: str, **options: Any) -> Any:
        if Path(os.path.realpath(path)) != self._folder or options.get("readonly"):
            return lmdb.open(path, **options)
        return _Environment(self, self.opening(lambda: lmdb.open(path, **options)))


class _Environment:
    def __init__(self, door: LmdbDoor, env: Any) -> None:
        self._door, self._env = door, env
        # Held over a commit and what is done about it, so that no other comes between.
        self._committing = threading.Lock()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._env, name)

    def begin(self, *arguments: Any, write: bool = False, **options: Any) -> Any:
        txn = self._env.begin(*arguments, write=write, **options)
        return _Transaction(self, txn) if write else txn

    def open_db(self, key: bytes | None = None, txn: Any = None, **options: Any) -> Any:
        real = txn.real if isinstance(txn, _Transaction) else txn
        if real is None and options.get("create", True):
            return self.commit(lambda: self._env.open_db(key, **options))
        return self._env.open_db(key, txn=real, **options)

    def copy(self, path: str, **options: Any) -> Any:
        copy = Path(os.path.realpath(path)) / DATA_FILE
        return self._door.copying(copy, lambda: self._env.copy(path, **options))

    def commit(self, do: Callable[[], Any]) -> Any:
        with self._committing:
            return self._door.committing(self._env, do)


class _Transaction:
    """A write transaction; used by `with`, as all of the tier's are."""

    def __init__(self, environment: _Environment, txn: Any) -> None:
        self._environment, self.real = environment, txn

    def __getattr__(self, name: str) -> Any:
        if name in ("commit", "abort"):
            raise NotImplementedError("the tier ends a transaction by hand; teach the door what that means")
        return getattr(self.real, name)

    def __enter__(self) -> "_Transaction":
        self.real.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> Any:
        if kind is not None:
            return self.real.__exit__(kind, error, trace)
        return self._environment.commit(lambda: self.real.__exit__(None, None, None))
