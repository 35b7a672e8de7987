"""What is wrong with an argument: told by its name, with what was given and what to do, before anything runs.

Only what the host knows is looked at: types, shapes, strides, devices. What stands in a tensor (a slot
outside the pool, a frame number) is not, since a GPU would have to be waited for; on a CPU lengths are.
"""

import math
from collections.abc import Sequence

import torch

__all__ = [
    "INDEX_TYPES",
    "KV_TYPES",
    "KernelArgumentError",
    "check_apart",
    "check_attention",
    "check_int",
    "check_is",
    "check_kv_layer",
    "check_lens",
    "check_tensor",
    "refuse",
]

KV_TYPES = (torch.float32, torch.float16, torch.bfloat16)
INDEX_TYPES = (torch.int32, torch.int64)
HEAD_DIM_MAX = 256


class KernelArgumentError(ValueError):
    """An argument that an operation can't take; nothing was launched and nothing was written."""


def refuse(operation: str, name: str, found: object, wanted: str, remedy: str) -> KernelArgumentError:
    """The error to raise: which argument of which operation, what it is, what it must be, what helps."""
    return KernelArgumentError(f"{operation}: {name} is {found}, but must be {wanted}; remedy: {remedy}")


def check_tensor(
    operation: str,
    name: str,
    tensor: torch.Tensor,
    *,
    shape: Sequence[int | None],
    dtypes: Sequence[torch.dtype],
    device: torch.device | None = None,
    dense_axes: int = 0,
) -> None:
    """Raises KernelArgumentError unless `tensor` has this shape (None: any size), one of these types, this
    device (None: any that has memory), and its last `dense_axes` axes without gaps."""
    check_is(operation, name, tensor, torch.Tensor, "torch.as_tensor")
    if tensor.layout is not torch.strided:
        raise refuse(operation, name, f"of layout {tensor.layout}", "torch.strided", f"{name}.to_dense()")
    if tensor.dtype not in dtypes:
        wanted = " or ".join(_name(each) for each in dtypes)
        raise refuse(operation, name, _describe(tensor), wanted, f"{name}.to(torch.{_name(dtypes[-1])})")
    if tensor.dim() != len(shape) or any(
        wanted is not None and size != wanted for size, wanted in zip(tensor.shape, shape, strict=True)
    ):
        sizes = ", ".join("any" if each is None else str(each) for each in shape)
        raise refuse(operation, name, _describe(tensor), f"of shape [{sizes}]", "pass it in that shape")
    if device is None and tensor.is_meta:
        raise refuse(operation, name, "on meta", "on a device that has memory", "allocate it there")
    if device is not None and tensor.device != device:
        raise refuse(operation, name, f"on {tensor.device}", f"on {device}", f"{name}.to({str(device)!r})")
    if not _is_dense(tensor, dense_axes):
        raise refuse(
            operation,
            name,
            f"{_describe(tensor)} with strides {list(tensor.stride())}",
            f"contiguous in its last {dense_axes} axes",
            f"{name}.contiguous(), or a view that keeps these axes whole",
        )


def check_is(operation: str, name: str, value: object, kind: type, remedy: str) -> None:
    """Raises KernelArgumentError unless `value` is of that class."""
    if not isinstance(value, kind):
        raise refuse(operation, name, f"of {type(value)}", f"a {kind.__name__}", remedy)


def check_int(operation: str, name: str, value: int) -> None:
    """A tensor would do for a number in most places, and a GPU be waited for where it is on one."""
    check_is(operation, name, value, int, f"int({name})")
    # It is an int to Python, and never meant.
    if value is True or value is False:
        raise refuse(operation, name, value, "a number", f"int({name})")


def check_apart(operation: str, name: str, tensor: torch.Tensor, axes: int) -> None:
    """Raises KernelArgumentError where entries of the first `axes` axes share memory, as after `expand`: a
    write to one would be one to others."""
    least = math.prod(tensor.shape[axes:])
    if any(tensor.stride(axis) < least and tensor.shape[axis] > 1 for axis in range(axes)):
        strides = f"{_describe(tensor)} with strides {list(tensor.stride())}"
        raise refuse(operation, name, strides, f"{least} elements apart or more", f"{name}.contiguous()")


def check_kv_layer(operation: str, kv_layer: torch.Tensor) -> None:
    """One layer of a pool: dtype[frames, 2, block_tokens, kv_heads, head_dim], its three last axes dense."""
    check_tensor(
        operation,
        "kv_layer",
        kv_layer,
        shape=(None, 2, None, None, None),
        dtypes=KV_TYPES,
        dense_axes=3,
    )
    if 0 in kv_layer.shape[2:4]:
        wanted = "of one token and one KV head at least"
        raise refuse(operation, "kv_layer", _describe(kv_layer), wanted, "pass a layer of the pool's view")
    check_apart(operation, "kv_layer", kv_layer, 2)
    if not 1 <= kv_layer.shape[4] <= HEAD_DIM_MAX:
        raise refuse(
            operation,
            "kv_layer",
            _describe(kv_layer),
            f"of a head_dim from 1 to {HEAD_DIM_MAX}",
            "another kernel is needed for heads of that size",
        )


def check_attention(
    operation: str,
    query: torch.Tensor,
    kv_layer: torch.Tensor,
    block_tables: torch.Tensor,
    context_lens: torch.Tensor,
) -> None:
    """What decode and prefill have in common; `query` is dtype[any, heads, head_dim]."""
    check_kv_layer(operation, kv_layer)
    kv_heads, head_dim = kv_layer.shape[3:]
    device = kv_layer.device
    check_tensor(
        operation,
        "query",
        query,
        shape=(None, None, head_dim),
        dtypes=(kv_layer.dtype,),
        device=device,
        dense_axes=1,
    )
    heads = query.shape[1]
    if heads % kv_heads or not heads:
        wanted = f"a multiple of {kv_heads} KV heads"
        raise refuse(operation, "query", f"of {heads} heads", wanted, "pass that layer of that model's pool")
    check_tensor(
        operation,
        "block_tables",
        block_tables,
        shape=(None, None),
        dtypes=INDEX_TYPES,
        device=device,
        dense_axes=1,
    )
    check_tensor(
        operation,
        "context_lens",
        context_lens,
        shape=(len(block_tables),),
        dtypes=INDEX_TYPES,
        device=device,
        dense_axes=1,
    )


def check_lens(operation: str, name: str, lens: Sequence[int], least: Sequence[int], most: int) -> None:
    """Lengths that the host can read: each between its own `least` and `most`."""
    for row, (length, at_least) in enumerate(zip(lens, least, strict=True)):
        if not at_least <= length <= most:
            raise refuse(
                operation, f"{name}[{row}]", length, f"from {at_least} to {most}", "check it with the maximum"
            )


def _is_dense(tensor: torch.Tensor, axes: int) -> bool:
    expected = 1
    for axis in range(-1, -axes - 1, -1):
        size = tensor.shape[axis]
        if size != 1 and tensor.stride(axis) != expected:
            return False
        expected *= size
    return True


def _describe(tensor: torch.Tensor) -> str:
    return f"{_name(tensor.dtype)}{list(tensor.shape)}"


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
