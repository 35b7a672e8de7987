"""The real service on fake GPUs, in a process of its own: `python -m tests.cuda.fake_service FLAGS`.

SIGUSR1: all streams stand still, or go on again. SIGUSR2: the first device is lost.
"""

import argparse
import logging
import signal
import sys
import time
from functools import partial

from kvstore.core.errors import KVStoreError
from kvstore.server import reports, server
from kvstore.server.config import parse_config
from kvstore.server.ending import run_to_the_end
from kvstore.server.gpus import STALLED_SECONDS, find_gpus
from kvstore.server.server import serve
from tests.cuda.fake import FakeDriver, fake_uuid


def main() -> int:
    parser = argparse.ArgumentParser()
    for flag in ("socket", "gpu", "cpu", "disk", "disk_bytes", "metrics"):
        parser.add_argument(f"--{flag.replace('_', '-')}")
    parser.add_argument("--lease", type=float, default=10.0)
    parser.add_argument("--drain-seconds", type=float, default=0.0)
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--memory-bytes", type=int, default=64 << 20)
    parser.add_argument("--ipc", action="store_true")
    parser.add_argument("--no-batches", action="store_true")
    parser.add_argument("--hang", default="", help="CALL of the first device that never returns")
    parser.add_argument("--hurry", type=float, default=1.0, help="share of its own deadlines that it waits")
    parser.add_argument("--fail", action="append", default=[], help="CALL or CALL+N")
    given = vars(parser.parse_args())
    logging.basicConfig(level=logging.INFO)
    driver = FakeDriver(
        given.pop("seed"),
        devices=given.pop("ranks"),
        memory_bytes=given.pop("memory_bytes"),
        exports_fds=not given.pop("ipc"),
        copies_batches=not given.pop("no_batches"),
    )
    for fault in given.pop("fail"):
        call, _, after = fault.partition("+")
        driver[0].fail(call, after=int(after or 0))
    if call := given.pop("hang"):
        driver[0].during[call] = partial(hang, call)
    hurry(given.pop("hurry"))
    take_signals(driver)
    flags = {name: value for name, value in given.items() if value is not None}
    uuids = [fake_uuid(index) for index in range(len(driver.by_uuid))]
    try:
        config = parse_config(gpu_devices=find_gpus(uuids, lambda: driver), **flags)
        status = run_to_the_end(
            lambda stopping: serve(config, driver, stopping), server.stop_seconds_max(config)
        )
    except KVStoreError as error:
        print(error, file=sys.stderr)
        return 2
    driver.close()
    for device in driver.by_uuid.values():
        at_work = not device.is_lost and not any(
            each.is_stalled for each in device.streams.by_number.values()
        )
        if at_work and device.left_behind:
            print(f"left behind: {device.left_behind}", file=sys.stderr)
            status = 3
    return status


def hang(call: str) -> None:
    logging.info("%s does not return", call)
    time.sleep(1e6)


def hurry(share: float) -> None:
    """Of what waits for a GPU that stands still, and until that is told."""
    server.TRANSFERS_SECONDS *= share
    server.MOVERS_SECONDS *= share
    server.GPUS_SECONDS *= share
    server.STOP_SECONDS *= share
    setattr(reports, "STALLED_SECONDS", STALLED_SECONDS * share)  # noqa: B010  It is another module's there.


def take_signals(driver: FakeDriver) -> None:
    stalled = [False]

    def stall(*_: object) -> None:
        stalled[0] = not stalled[0]
        for device in driver.by_uuid.values():
            (device.streams.stall if stalled[0] else device.streams.resume)()

    signal.signal(signal.SIGUSR1, stall)
    signal.signal(signal.SIGUSR2, lambda *_: driver[0].lose())


if __name__ == "__main__":
    sys.exit(main())
