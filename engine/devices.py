"""Devices by the names under which they are asked for: cpu, cuda, cuda:N."""

import re

import torch

from engine.device import CpuDevice, Device, DeviceRefused
from engine.gpu_device import GpuDevice
from engine.gpu_stream import CudaStream

__all__ = ["DEVICE_HELP", "gpu_uuid", "open_device"]

DEVICE_HELP = "Where it computes: cpu, cuda or cuda:N; there the service's GPU tier has to be too."


def open_device(name: str) -> Device:
    """`cuda` is the first that this process sees. Raises DeviceRefused."""
    uuid = gpu_uuid(name)
    if not uuid:
        return CpuDevice()
    device = torch.device("cuda", _number(name))
    return GpuDevice(CudaStream(device), str(device), uuid)


def gpu_uuid(name: str) -> str:
    """What the service calls that device, GPU-…; empty for the CPU. Raises DeviceRefused."""
    if name == "cpu":
        return ""
    number = _number(name)
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


def _number(name: str) -> int:
    found = re.fullmatch(r"cuda(?::(\d+))?", name)
    if found is None:
        raise DeviceRefused(f"--device {name}: there is no such device; remedy: cpu, cuda or cuda:N")
    return int(found[1] or 0)
