"""A machine in virtual time: the real store, its clock, its links, and the beat that the service gives it."""

from dataclasses import dataclass

from kvstore.core.calls import Attach, SetCosts
from kvstore.core.config import COPY_FROM_SHARE, StoreConfig, transfer_blocks, write_blocks
from kvstore.core.effects import Effects, Transfer
from kvstore.core.errors import ConfigInvalid, check
from kvstore.core.events import Event, Tick, TransferEnded
from kvstore.core.ports import EvictionPolicy, SwapPolicy
from kvstore.core.store import Store
from kvstore.core.types import CPU, DISK, GPU, EngineId, Link, LinkCost, NamespaceId, Tier, WriterId
from kvstore.planner.links import VirtualLinks
from kvstore.planner.profile import Profile
from kvstore.policy.choices import make_admission
from kvstore.sim.clock import Clock

__all__ = ["ENGINE", "Machine", "Sizes"]

ENGINE = EngineId("planned")
# As the service's, where blocks move down by themselves.
TICK_SECONDS = 0.1
# Where nothing moves: not above a second, which would be taken for a pause of the service.
IDLE_TICK_SECONDS = 1.0
# After so many of these, with nothing to do or to move, nothing would come of more: the beat rests. What is
# done bit by bit in the background, such as to judge what is worth a write, is over by then.
IDLE_TICKS_MAX = 300
LEASE_SECONDS = 10.0
# So that large blocks don't cost an event each. A service moves them one by one, so here what is asked for
# waits for some more of what was begun before it.
TRANSFER_BLOCKS_MIN = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """Of the tiers, in bytes (0: no such tier), and of a block."""

    gpu_bytes: int
    cpu_bytes: int = 0
    disk_bytes: int = 0
    kv_bytes_per_token: int
    block_tokens: int

    @property
    def block_bytes(self) -> int:
        return self.kv_bytes_per_token * self.block_tokens

    @property
    def frames(self) -> tuple[int, int, int]:
        size = self.block_bytes
        return self.gpu_bytes // size, self.cpu_bytes // size, self.disk_bytes // size

    def store_config(self, *, judges_turns: bool = False) -> StoreConfig:
        """Refuses a tier that doesn't hold a block."""
        names = ("--gpu", "--cpu", "--disk")
        sizes = (self.gpu_bytes, self.cpu_bytes, self.disk_bytes)
        for name, size, frames in zip(names, sizes, self.frames, strict=True):
            if not frames and (size or name == "--gpu"):
                raise ConfigInvalid(
                    f"a block of {self.block_tokens} tokens is {self.block_bytes} bytes",
                    field=name,
                    value=size,
                    remedy="give the tier room for some blocks, or see --kv-bytes-per-token",
                )
        gpu, cpu, disk = self.frames
        if disk and not cpu:
            raise ConfigInvalid(
                "a disk tier needs a CPU tier to pass through",
                field="--disk",
                value=self.disk_bytes,
                remedy="give --cpu a size or leave --disk out",
            )
        return StoreConfig(
            block_tokens=self.block_tokens,
            gpu_frames=gpu,
            cpu_frames=cpu,
            disk_frames=disk,
            judges_turns=judges_turns,
            copy_from_share=COPY_FROM_SHARE,
            transfer_blocks_max=max(TRANSFER_BLOCKS_MIN, transfer_blocks(self.block_bytes)),
            write_blocks_max=max(TRANSFER_BLOCKS_MIN, write_blocks(self.block_bytes, cpu)),
        )


class Machine:
    """Whoever works on it calls `handle` and hears of news by `wake`, in the middle of another event
    perhaps."""

    def __init__(
        self,
        sizes: Sizes,
        profile: Profile,
        eviction: EvictionPolicy,
        swap: SwapPolicy,
        *,
        judges_turns: bool = False,
    ) -> None:
        self.sizes, self.profile = sizes, profile
        config = sizes.store_config(judges_turns=judges_turns)
        self.store = Store(config, eviction, swap, make_admission(eviction))
        self.clock = Clock()
        self.links = VirtualLinks(profile, sizes.block_bytes, self.clock, self._ended)
        self.time = 0.0
        # The engine has news; copies have left the GPU, so frames may be free there. It takes this back.
        self.is_woken = self.is_copied = False
        # Work that goes on: while there is none, the beat is slow.
        self.is_working = False
        self._idle_ticks = 0
        self.is_resting = False
        self.events = 0
        self.blocks_queried = 0
        self.blocks_found = [0 for _ in Tier]
        costs = _link_costs(sizes, profile, config.transfer_blocks_max * sizes.block_bytes)
        self.handle(SetCosts(time=0.0, block_bytes=sizes.block_bytes, links=costs))
        self.handle(
            Attach(
                time=0.0,
                engine=ENGINE,
                request_id="planned",
                namespace=NamespaceId(1),
                writer=WriterId(1),
                build="planned",
                lease_seconds=LEASE_SECONDS,
            )
        )

    @property
    def bytes_moved(self) -> dict[Link, int]:
        return {link: count * self.sizes.block_bytes for link, count in self.links.blocks_moved.items()}

    def handle(self, event: Event) -> Effects:
        self.events += 1
        effects = self.store.handle(event)
        check(not effects.syncs, "the disk is asked for an answer, and nothing was forgotten")
        for transfer in effects.transfers:
            self.links.carry(transfer, self.time)
        for admitted in effects.admitted:
            self.blocks_queried += admitted.blocks_queried
            for tier, count in enumerate(admitted.tier_blocks):
                self.blocks_found[tier] += count
        self.is_woken |= bool(effects.wake)
        return effects

    def beat(self) -> None:
        """Call once; it goes on by itself, until it rests."""
        self.handle(Tick(time=self.time))
        is_idle = not self.is_working and self.links.is_idle
        self._idle_ticks = self._idle_ticks + 1 if is_idle else 0
        self.is_resting = self._idle_ticks >= IDLE_TICKS_MAX
        if not self.is_resting:
            busy = self.sizes.cpu_bytes and not is_idle
            self.clock.at(self.time + (TICK_SECONDS if busy else IDLE_TICK_SECONDS), self.beat)

    def begin_work(self) -> None:
        """Something is to be done; the beat goes on, if it rested."""
        self.is_working = True
        if self.is_resting:
            self.beat()

    def _ended(self, transfer: Transfer) -> None:
        self.is_copied |= transfer.source is GPU
        self.handle(TransferEnded(time=self.time, transfer=transfer.id))


def _link_costs(sizes: Sizes, profile: Profile, transfer_bytes: int) -> tuple[LinkCost, ...]:
    """Of the links that there are, as a service would tell them: each full transfer has its fixed time."""
    has = {GPU: True, CPU: sizes.cpu_bytes > 0, DISK: sizes.disk_bytes > 0}
    return tuple(
        [
            LinkCost(
                source=source,
                target=target,
                bytes_per_second=1 / (1 / speed.bandwidth + speed.latency / transfer_bytes),
                fixed_seconds=speed.latency,
            )
            for (source, target), speed in profile.links().items()
            if has[source] and has[target]
        ]
    )
