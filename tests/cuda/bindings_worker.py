"""In a process that finds the tests' own libcuda: what the conformance can't see of the bindings."""

import mmap
import sys
import threading
import time

import numpy as np
import pytest

from kvstore.cuda.bindings import load_driver
from kvstore.cuda.driver import CudaFailed, CudaUnavailable, Driver
from kvstore.cuda.memory import DeviceMemory


def main(missing: str = "") -> None:
    """`missing`: the call that the driver does not have."""
    if missing == "cuInit":
        with pytest.raises(CudaUnavailable, match=r"no CUDA driver.*cuInit"):
            load_driver()
    elif missing:
        check_a_missing_call_is_named(load_driver(), missing)
    else:
        check_all(load_driver())
    print("good")


def check_a_missing_call_is_named(driver: Driver, call: str) -> None:
    device = driver.open(driver.devices()[0].uuid)
    with device.current():
        memory = DeviceMemory.make(device, 1 << 20)
        stream = device.make_stream()
        with pytest.raises(CudaFailed, match=f"{call} failed with CUDA_ERROR_NOT_FOUND: .*{call}") as caught:
            device.copy_batch([memory.address], [memory.address + 4096], [4096], stream)
        assert not caught.value.is_lost
        device.destroy_stream(stream)
        memory.close()
    device.close()


def check_all(driver: Driver) -> None:
    first, second = driver.devices()
    assert (first.uuid, first.name) == ("GPU-a0a0a0a0-a0a0-a0a0-a0a0-a0a0a0a0a0a0", "Stub GPU"), first
    assert second.uuid == "GPU-a1a1a1a1-a1a1-a1a1-a1a1-a1a1a1a1a1a1"
    device = driver.open(first.uuid)
    assert device.copies_batches
    device.close()
    # Its pinned memory has other addresses on the device than on the host: no batches.
    device = driver.open(second.uuid)
    assert device.exports_fds
    assert not device.copies_batches
    check_a_context_is_needed(device)
    with device.current():
        check_python_goes_on_while_memory_is_pinned(device)
        address = device.allocate(100)
        memory = DeviceMemory.import_ipc(device, device.export_ipc(address), 100)
        memory.close()
        device.free(address)
        check_an_error_has_the_drivers_name(device)
    check_a_context_is_needed(device)
    device.close()


def check_a_context_is_needed(device) -> None:
    """What `current` has made the thread's is gone again after it."""
    with pytest.raises(CudaFailed, match="CUDA_ERROR_INVALID_CONTEXT"):
        device.make_event()


def check_an_error_has_the_drivers_name(device) -> None:
    with pytest.raises(CudaFailed, match="cuIpcOpenMemHandle failed with CUDA_ERROR_INVALID_VALUE") as caught:
        device.open_ipc(b"of nobody")
    assert not caught.value.is_lost


def check_python_goes_on_while_memory_is_pinned(device) -> None:
    """The stub takes a tenth of a second to pin. Another thread of Python has to run meanwhile."""
    host = np.frombuffer(mmap.mmap(-1, 8192), np.uint8)
    counted, stop = [0], threading.Event()

    def count() -> None:
        while not stop.is_set():
            counted[0] += 1
            time.sleep(0.001)

    counter = threading.Thread(target=count)
    counter.start()
    while not counted[0]:
        time.sleep(0.001)
    before = counted[0]
    device.pin(host.ctypes.data, 8192)
    during = counted[0] - before
    stop.set()
    counter.join()
    assert during > 1, during
    device.unpin(host.ctypes.data)


if __name__ == "__main__":
    main(*sys.argv[1:])
