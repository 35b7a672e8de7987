"""UpdateLimits at work: what an operator sets holds from then on, whether there is a store already or not."""

from kvstore.core.answers import Done
from kvstore.core.calls import SetLimits
from kvstore.core.types import CPU, GPU, Tier, Watermarks
from kvstore.server.clock import now
from kvstore.server.config import ServeConfig
from kvstore.server.limits import LinkLimits
from kvstore.server.limits_messages import decode_limits, encode_limits
from kvstore.server.running import RunningStore
from kvstore.v1 import kvstore_pb2 as pb

__all__ = ["Limits"]


class Limits:
    """Rates are the movers' affair; watermarks are the store's, so they pass through it as an event."""

    def __init__(self, config: ServeConfig) -> None:
        self.links = LinkLimits(config.links, config.limits)
        gpu = Watermarks(tier=GPU, high=config.high_watermark, low=config.low_watermark)
        cpu = Watermarks(tier=CPU, high=config.cpu_high_watermark, low=config.cpu_low_watermark)
        self._initial = {GPU: gpu, CPU: cpu}
        # Set before there was a store to set them in.
        self._waiting: dict[Tier, Watermarks] = {}

    def update(self, request: pb.UpdateLimitsRequest, running: RunningStore | None) -> pb.Limits:
        """All that is asked for, or a refusal; then what holds now."""
        present = self._watermarks(running)
        rates, watermarks = decode_limits(request, tuple(self.links.by_link), present)
        if watermarks and running is not None:
            running.ask(SetLimits(time=now(), watermarks=watermarks), Done)
        elif watermarks:
            self._waiting.update({each.tier: each for each in watermarks})
        self.links.update(rates)
        return encode_limits(self.links, self._watermarks(running))

    def begin(self, running: RunningStore) -> None:
        """There is a store now."""
        if self._waiting:
            running.ask(SetLimits(time=now(), watermarks=tuple(self._waiting.values())), Done)

    def _watermarks(self, running: RunningStore | None) -> dict[Tier, Watermarks]:
        return running.watermarks if running is not None else self._initial | self._waiting
