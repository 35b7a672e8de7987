"""Devices by the names under which they are asked for: cpu, cuda, cuda:N."""

import torch

from engine.device import CpuDevice, Device, DeviceRefused
from engine.gpu_device import GpuDevice
from engine.gpu_stream import CudaStream
from engine.names import cuda_number, is_device

__all__ = ["gpu_bytes", "gpu_uuid", "open_device"]


def open_device(name: str) -> Device:
    """`cuda` is the first that this process sees. Raises DeviceRefused."""
    uuid = gpu_uuid(name)
    if not uuid:
        return CpuDevice()
    device = torch.device("cuda", cuda_number(name))
    return GpuDevice(CudaStream(device), str(device), uuid)


def gpu_uuid(name: str) -> str:
    """What the service calls that device, GPU-…; empty for the CPU. Raises DeviceRefused."""
    if not is_device(name):
        raise DeviceRefused(f"--device {name}: there is no such device; remedy: cpu, cuda or cuda:N")
    if name == "cpu":
        return ""
    number = cuda_number(name)
    if not torch.cuda.is_available():
        why = "this torch is one for CPUs" if torch.version.cuda is None else "torch sees no GPU"
        raise DeviceRefused(
            f"--device {name}: {why}; remedy: --device cpu, or on a machine with an NVIDIA GPU a torch with "
            "CUDA, and no CUDA_VISIBLE_DEVICES that hides it (docs/operations.md has how)"
        )
    count = torch.cuda.device_count()
    if number >= count:
        raise DeviceRefused(f"--device {name}: torch sees {count} GPU(s); remedy: cuda:0 to cuda:{count - 1}")
    uuid = str(torch.cuda.get_device_properties(number).uuid)
    return uuid if uuid.startswith("GPU-") else f"GPU-{uuid}"


def gpu_bytes(name: str) -> int:
    """All the memory of a GPU that `gpu_uuid` has found."""
    return int(torch.cuda.get_device_properties(cuda_number(name)).total_memory)
