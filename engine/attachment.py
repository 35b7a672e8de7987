"""The engine's hold on the memory that its KV is in: attached to who keeps it, or not, and the frames of it.

A service that is lost is asked again, once with each call, until it has been away for too long. Where KV is
kept without a service (`kv/in_process.py`) there is none to lose. Tests: tests/engine/test_engine.py.
"""

import time

import torch

from engine.device import Device, DeviceRefused
from engine.kv.store_client import StoreClient
from engine.model import Llama
from kvstore.client import Layout, Refused, ServiceLost

__all__ = ["BUILD", "Attachment"]

BUILD = "kvstore reference engine 1"
# Between two tries.
PAUSE_SECONDS = 0.1
# Refusals of an Attach that pass by themselves, once the service had this engine.
PASSING = ("DRAINING", "POOL_QUARANTINED", "TOO_MANY_ENGINES")


class Attachment:
    """Not attached yet. `seconds`: how long a service may be away before that is an error."""

    def __init__(
        self, model: Llama, client: StoreClient, device: Device, *, block_tokens: int, seconds: float
    ) -> None:
        self.seconds = seconds
        # How often it was.
        self.count = 0
        self._client, self._device = client, device
        self._kv_layout = model.config.kv_layout(block_tokens=block_tokens, dtype=model.weights.dtype)
        self._layout = Layout(
            block_tokens=block_tokens,
            block_bytes=self._kv_layout.block_bytes,
            fingerprint=self._kv_layout.fingerprint(model.weights.digest),
            description=self._kv_layout.description(),
        )
        # The frames as bytes, uint8[frames, stride], and as the model sees them.
        self.frames = self.pool = torch.empty(0)
        # Of the pool that it has, or had last.
        self.frame_count = 0
        self._lost_at: float | None = time.monotonic()

    @property
    def is_there(self) -> bool:
        return self._lost_at is None

    @property
    def block_bytes(self) -> int:
        return self._layout.block_bytes

    def try_attach(self) -> bool:
        """Once, and pauses where that fails; raises when it has failed for too long."""
        try:
            if self.count:
                # Fails at once where nobody is there; an Attach would try for seconds, and nothing else done.
                self._client.check_service()
            self._client.attach(self._layout, build=BUILD)
        except (ServiceLost, Refused) as error:
            passes = isinstance(error, ServiceLost) or (self.count and error.reason in PASSING)
            lost_at = self._lost_at or time.monotonic()
            if not passes or time.monotonic() - lost_at >= self.seconds:
                raise
            time.sleep(PAUSE_SECONDS)
            return False
        try:
            self.frames = self._device.open_pool(self._client.pools[0])
        except DeviceRefused:
            self._client.close()
            raise
        self.pool = self._kv_layout.view(self.frames)
        self.frame_count = self._client.frame_count
        self._lost_at = None
        self.count += 1
        return True

    def lose(self) -> None:
        """The old pool is let go, or its memory would stay taken."""
        self._lost_at = time.monotonic()
        self.let_go()

    def let_go(self) -> None:
        """No work is under way any more, and nothing holds the pool."""
        self._device.let_go()
        self.frames = self.pool = torch.empty(0)
