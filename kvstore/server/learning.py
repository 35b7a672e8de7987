"""What the links can do: kept on disk with the namespace, else measured while the pools are new."""

import logging
from collections.abc import Sequence

from kvstore.core.types import Link, NamespaceId, TenantId, WriterId
from kvstore.server.pools import Pools
from kvstore.tiers.calibrating import block_counts, calibrate, calibration_keys
from kvstore.tiers.cuda_pool import CudaPool
from kvstore.tiers.disk import DiskTier
from kvstore.tiers.rates import LinkRates, RatesUnreadable

__all__ = ["LearntRates"]

log = logging.getLogger(__name__)


class LearntRates:
    """`learn` and `keep` block: not for the event loop's thread."""

    def __init__(self, disk: DiskTier | None, links: Sequence[Link]) -> None:
        self.rates = LinkRates()
        self._disk = disk
        self._links = links
        # Under which name the disk keeps them; empty before the first Attach.
        self._note = ""

    def learn(
        self, pools: Pools, namespace: NamespaceId, owner: tuple[TenantId, WriterId], disk_room: int
    ) -> None:
        """Before any frame is in use. `owner`: whose the blocks are that are written to try the disk, for as
        many as there is room."""
        if self._disk is None:
            calibrate(self.rates, pools.gpu, pools.cpu)
            return
        # Host memory and a GPU have nothing in common.
        on_gpus = " on GPUs" if isinstance(pools.gpu, CudaPool) else ""
        self._note = f"rates of namespace {namespace}{on_gpus}"
        self._restore(self._disk)
        if all(self.rates.rate(link).is_known for link in self._links):
            return
        # Not all of it, for the tier is to have room when it begins.
        count = min(disk_room // 2, block_counts(pools.gpu.frame_bytes)[-1])
        keys = calibration_keys(namespace, *owner, count)
        calibrate(self.rates, pools.gpu, pools.cpu, self._disk, keys)
        self.keep()

    def keep(self) -> None:
        if self._disk is not None and self._note:
            self._disk.notes.put(self._note, self.rates.encode())

    def _restore(self, disk: DiskTier) -> None:
        kept = disk.notes.get(self._note)
        if kept:
            try:
                self.rates.restore(kept)
            except RatesUnreadable as error:
                log.warning("the links are measured again: %s", error)
