"""The GPUs of the service: found by their names at the start, one for each rank, each with the thread that
makes all calls of it."""

import logging
from collections.abc import Callable, Sequence
from typing import NoReturn

from kvstore.core.errors import ConfigInvalid, FieldInvalid
from kvstore.cuda.bindings import load_driver
from kvstore.cuda.driver import CudaFailed, CudaUnavailable, DeviceFound, Driver
from kvstore.server.sizes import format_bytes
from kvstore.tiers.cuda_thread import CudaThread, DeviceLost

__all__ = ["Gpus", "STALLED_SECONDS", "check_gpu_memory", "find_gpus", "open_gpus"]

FLAG = "--gpu-device"
# The one there is.
ONLY = "cuda"
# From then on a copy that is waited for is told of: none takes a second by itself.
STALLED_SECONDS = 5.0

log = logging.getLogger(__name__)


def find_gpus(wanted: Sequence[str], load: Callable[[], Driver] = load_driver) -> tuple[DeviceFound, ...]:
    """What was asked for, in that order: UUIDs, or `cuda` for the only device there is. Nothing is asked of
    the driver where nothing is wanted."""
    if not wanted:
        return ()
    try:
        found = load().devices()
    except (CudaUnavailable, CudaFailed) as error:
        remedy = f"leave {FLAG} out to run in host memory, or make the driver work: nvidia-smi tells"
        raise ConfigInvalid(str(error), field=FLAG, value=", ".join(wanted), remedy=remedy) from error
    by_uuid = {device.uuid: device for device in found}
    names = ", ".join(map(str, found))
    chosen: list[DeviceFound] = []
    for name in wanted:
        if name == ONLY and len(found) == 1:
            chosen.append(found[0])
        elif name in by_uuid:
            chosen.append(by_uuid[name])
        else:
            problem = f"there are {len(found)} devices" if name == ONLY else "no such device"
            _refuse(wanted, problem, f"devices: {names}")
    if len(set(chosen)) < len(chosen):
        _refuse(wanted, "a device named twice", f"one for each rank; devices: {names}")
    return tuple(chosen)


def check_gpu_memory(gpu_bytes: int, devices: Sequence[DeviceFound]) -> None:
    """Against all that each has; what is free is looked at when the pool is made."""
    share = gpu_bytes // len(devices)
    small = [device for device in devices if device.memory_bytes < share]
    if small:
        each = min(device.memory_bytes for device in small)
        raise ConfigInvalid(
            f"{format_bytes(share)} a device are more than the {format_bytes(each)} of {small[0]}",
            field="--gpu",
            value=gpu_bytes,
            remedy=f"at most {each * len(devices)} bytes, which are for all {len(devices)} together",
        )


class Gpus:
    """Devices in the order of the ranks."""

    def __init__(self, threads: Sequence[CudaThread], granularity_bytes: int) -> None:
        self.threads = tuple(threads)
        # What memory on each of them is made in multiples of.
        self.granularity_bytes = granularity_bytes

    @property
    def error(self) -> Exception | None:
        """Why one of them is lost."""
        return next((thread.error for thread in self.threads if thread.error is not None), None)

    @property
    def stalled_seconds(self) -> float:
        return max(thread.stalled_seconds for thread in self.threads)

    def check_ranks(self, ranks: int) -> None:
        count = len(self.threads)
        if ranks != count:
            names = ", ".join(thread.uuid for thread in self.threads)
            raise FieldInvalid(
                f"the service has {count} GPU(s), one a rank: {names}",
                field="layout.ranks",
                value=ranks,
                remedy=f"attach with {count} rank(s), or start the service with {FLAG} for each rank",
            )

    def rank_bytes(self, gpu_bytes: int) -> int:
        """The part of each, in whole multiples: rounding up would take more than was given."""
        each = gpu_bytes // len(self.threads)
        return each // self.granularity_bytes * self.granularity_bytes

    def close(self, seconds: float) -> None:
        """A driver that hangs is left to the end of the process."""
        for thread in self.threads:
            if not thread.close(seconds):
                log.warning("%s does not end: its driver hangs, or a copy has not ended", thread.uuid)


def open_gpus(uuids: Sequence[str], driver: Driver | None = None) -> Gpus | None:
    """None: the service was given none. `driver`: the machine's by default."""
    if not uuids:
        return None
    threads: list[CudaThread] = []
    try:
        driver = driver or load_driver()
        for uuid in uuids:
            threads.append(CudaThread(driver, uuid))
        sizes = [thread.call(lambda device: device.granularity_bytes()) for thread in threads]
        return Gpus(threads, max(sizes))
    except (CudaUnavailable, CudaFailed, DeviceLost) as error:
        Gpus(threads, 0).close(1.0)
        remedy = "look at it with nvidia-smi: another process may have it for itself"
        raise ConfigInvalid(
            f"a GPU can't be opened: {error}", field=FLAG, value=", ".join(uuids), remedy=remedy
        ) from error


def _refuse(wanted: Sequence[str], problem: str, remedy: str) -> NoReturn:
    raise ConfigInvalid(problem, field=FLAG, value=", ".join(wanted), remedy=remedy)
