"""A call of the driver through `cuda-bindings`: what it gives, or what it says is wrong."""

from typing import Any

from kvstore.cuda.driver import CudaFailed

__all__ = ["LOST", "Calls"]

# As the driver calls what it does not have.
MISSING = "CUDA_ERROR_NOT_FOUND"

# After these nothing on the device works any more for this process, so say the driver's documents.
LOST = frozenset(
    f"CUDA_ERROR_{name}"
    for name in (
        "ASSERT",
        "CONTAINED",
        "CONTEXT_IS_DESTROYED",
        "DEINITIALIZED",
        "DEVICE_UNAVAILABLE",
        "ECC_UNCORRECTABLE",
        "EXTERNAL_DEVICE",
        "HARDWARE_STACK_ERROR",
        "ILLEGAL_ADDRESS",
        "ILLEGAL_INSTRUCTION",
        "INVALID_ADDRESS_SPACE",
        "INVALID_PC",
        "LAUNCH_FAILED",
        "LAUNCH_TIMEOUT",
        "MISALIGNED_ADDRESS",
        "MPS_CLIENT_TERMINATED",
        "MPS_RPC_FAILURE",
        "NVLINK_UNCORRECTABLE",
        "TENSOR_MEMORY_LEAK",
        "UNKNOWN",
    )
)


class Calls:
    """A call of the driver by its name: what it gives, or CudaFailed."""

    def __init__(self, api: Any) -> None:
        self.api = api

    def __call__(self, name: str, *arguments: object) -> list[Any]:
        given: list[Any]
        try:
            code, *given = getattr(self.api, name)(*arguments)
        except (AttributeError, RuntimeError) as error:
            # Of cuda-bindings, where it or the driver is older than the call.
            raise CudaFailed(name, f"{MISSING}: {error}") from error
        if code != self.api.CUresult.CUDA_SUCCESS:
            raise CudaFailed(name, code.name, is_lost=code.name in LOST)
        return given
