"""A stream used as calls: one request, one answer, and time for other work between."""

import queue
from collections.abc import Iterator
from typing import Generic, Self, TypeVar

import grpc

__all__ = ["Streamed"]

Request = TypeVar("Request")
Response = TypeVar("Response")


class Streamed(Generic[Request, Response]):
    def __init__(self, method: "grpc.StreamStreamMultiCallable[Request, Response]") -> None:
        self._requests: queue.SimpleQueue[Request | None] = queue.SimpleQueue()
        self._responses = method(self._sent())

    def __call__(self, request: Request) -> Response:
        self.send(request)
        return self.receive()

    def send(self, request: Request) -> None:
        self._requests.put(request)

    def receive(self) -> Response:
        return next(self._responses)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._requests.put(None)
        for _response in self._responses:
            pass

    def _sent(self) -> Iterator[Request]:
        while (request := self._requests.get()) is not None:
            yield request
