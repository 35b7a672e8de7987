"""The reference: a server that does nothing but answer, with as many bytes as the real answer has.

It is what gRPC costs in this language on this machine: `grpc.aio`, a Unix socket, a process of its own, bytes
in and bytes out. A request begins with the size of the answer that it wants.
"""

import asyncio
import sys
from collections.abc import AsyncIterator

import grpc
import grpc.aio

__all__ = ["echo_stream", "echo_unary", "make_request"]

NAME = "bench.Echo"
SIZE_BYTES = 4


def make_request(request_bytes: int, response_bytes: int) -> bytes:
    return response_bytes.to_bytes(SIZE_BYTES, "little").ljust(request_bytes, b"\1")


def echo_unary(channel: grpc.Channel) -> "grpc.UnaryUnaryMultiCallable[bytes, bytes]":
    return channel.unary_unary(f"/{NAME}/Unary")


def echo_stream(channel: grpc.Channel) -> "grpc.StreamStreamMultiCallable[bytes, bytes]":
    return channel.stream_stream(f"/{NAME}/Stream")


async def _unary(request: bytes, _context: object) -> bytes:
    return bytes(int.from_bytes(request[:SIZE_BYTES], "little"))


async def _stream(requests: AsyncIterator[bytes], _context: object) -> AsyncIterator[bytes]:
    async for request in requests:
        yield bytes(int.from_bytes(request[:SIZE_BYTES], "little"))


async def _serve(path: str) -> None:
    server = grpc.aio.server()
    handlers: dict[str, grpc.RpcMethodHandler[bytes, bytes]] = {
        "Unary": grpc.unary_unary_rpc_method_handler(_unary),
        "Stream": grpc.stream_stream_rpc_method_handler(_stream),
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(NAME, handlers),))
    server.add_insecure_port(f"unix:{path}")
    await server.start()
    await server.wait_for_termination()


if __name__ == "__main__":
    asyncio.run(_serve(sys.argv[1]))
