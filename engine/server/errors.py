"""What is refused, in OpenAI's form: a status, and `{"error": {"message", "type", "param", "code"}}`.

Messages name fields and numbers, never what was written in a prompt.
"""

from typing import Any

__all__ = [
    "ApiError",
    "answer_too_large",
    "invalid",
    "model_not_found",
    "not_served",
    "overloaded",
    "prompt_too_long",
    "time_is_over",
    "too_large",
    "two_lengths",
    "unauthorized",
    "wrong_host",
]

# Seconds after which one who was refused for want of room may ask again.
RETRY_SECONDS = 1


class ApiError(Exception):
    """A request that ends with an error, before its answer has begun or in the middle of it."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        kind: str = "invalid_request_error",
        param: str | None = None,
        code: str | None = None,
        headers: dict[str, str] | None = None,
    ) -> None:
        self.status = status
        self.headers = headers or {}
        message, param = _sendable(message), param and _sendable(param)
        error = {"message": message, "type": kind, "param": param, "code": code}
        self.body: dict[str, Any] = {"error": error}
        super().__init__(message)


def invalid(message: str, param: str | None = None, code: str | None = None) -> ApiError:
    return ApiError(400, message, param=param, code=code)


def unauthorized() -> ApiError:
    headers = {"WWW-Authenticate": "Bearer", "Connection": "close"}
    message = "A valid API key is needed, as `Authorization: Bearer KEY`."
    return ApiError(401, message, code="invalid_api_key", headers=headers)


def wrong_host() -> ApiError:
    message = "Without an API key this server is asked by a loopback address."
    return ApiError(403, message, code="wrong_host", headers={"Connection": "close"})


def two_lengths() -> ApiError:
    """Where it ends is a matter of who reads it, so what follows on the connection is not to be trusted."""
    message = "A request has a Content-Length or a Transfer-Encoding, not both."
    return ApiError(400, message, headers={"Connection": "close"})


def model_not_found(name: str, served: str) -> ApiError:
    message = f"The model {name[:128]!r} does not exist here; this server has {served!r}."
    return ApiError(404, message, param="model", code="model_not_found")


def prompt_too_long(prompt_tokens: int, answer_tokens: int, context_tokens: int, param: str) -> ApiError:
    message = (
        f"This model's maximum context length is {context_tokens} tokens. However, you requested "
        f"{prompt_tokens + answer_tokens} tokens ({prompt_tokens} in the {param}, {answer_tokens} in the "
        f"completion). Please reduce the length of the {param} or the completion."
    )
    return invalid(message, param, "context_length_exceeded")


def overloaded(message: str) -> ApiError:
    return ApiError(
        429,
        message,
        kind="requests",
        code="rate_limit_exceeded",
        headers={"Retry-After": str(RETRY_SECONDS)},
    )


def time_is_over(seconds: float) -> ApiError:
    """To ask again at once would take as long again, so clients are told not to by themselves."""
    return ApiError(
        504,
        f"The request was not done after its {seconds:g} seconds.",
        kind="timeout",
        code="deadline_exceeded",
        headers={"x-should-retry": "false"},
    )


def too_large(reason: str, param: str | None = None) -> ApiError:
    """The engine can never compute it."""
    return invalid(f"The request can't be computed here: {reason}.", param, "memory_exceeded")


def answer_too_large(field: str, tokens: int, prompt_tokens: int, tokens_max: int, at_once: int) -> ApiError:
    """`field` has asked for so many tokens of an answer, and behind this prompt there is room for
    `tokens_max`, with so many answers `at_once`."""
    each = f" for each of {at_once} at once" if at_once > 1 else ""
    message = (
        f"{field} is {tokens}, but behind the {prompt_tokens} tokens of this prompt the KV memory has room "
        f"for at most {tokens_max}{each}. Please set {field} to that or less, leave it out to get what "
        "there is room for, or shorten the prompt."
    )
    return invalid(message, field, "memory_exceeded")


def not_served() -> ApiError:
    headers = {"Retry-After": str(RETRY_SECONDS)}
    message = "The server is stopping, or its engine has failed."
    return ApiError(503, message, kind="server_error", code="not_serving", headers=headers)


def _sendable(text: str) -> str:
    """What a client has named may hold half of a surrogate pair, which UTF-8 has no bytes for."""
    return text.encode("utf-8", "replace").decode()
