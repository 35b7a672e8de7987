"""The `kvstore-engine` program: flags in, checked options out, and the server run on them."""

import ipaddress
import logging
import os
import signal
import stat
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Annotated, NoReturn

import torch
import typer

from engine.device import DeviceRefused
from engine.devices import DEVICE_HELP, gpu_uuid
from engine.models import DTYPES, MODEL_NAMES, ModelNotFoundError
from engine.refused import ModelRefused
from engine.server.kv_choice import KVRefused, choose_kv
from engine.server.limits import Limits
from engine.server.loading import Loaded, load
from engine.server.own_service import ServiceFailed, own_service
from engine.server.serving import CannotListen, Options, Server
from kvstore.client import ClientError

__all__ = ["main"]

EXIT_FAILED, EXIT_REFUSED = 1, 2
DEFAULT = Limits()

app = typer.Typer(
    name="kvstore-engine",
    help="The reference engine: a model over kvstore.",
    no_args_is_help=True,
    add_completion=False,
    # A bug shows Python's own traceback; values of variables may be prompts.
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback()
def _program() -> None:
    """With a callback a single command keeps its name."""


@app.command()
def serve(
    model: Annotated[
        str,
        typer.Option(help=f"{', '.join(MODEL_NAMES)}, a GGUF file, or a folder with safetensors."),
    ] = "smollm2",
    dtype: Annotated[str, typer.Option(help=f"Of weights and KV: {', '.join(DTYPES)}.")] = "fp32",
    device: Annotated[str, typer.Option(help=DEVICE_HELP)] = "cpu",
    kv: Annotated[
        str,
        typer.Option(
            help="Where KV is kept: contiguous or paged, in this process; shared or tiered, in a service, "
            "without preemption; full, in a service."
        ),
    ] = "full",
    kv_memory: Annotated[
        str | None,
        typer.Option(help="For KV: the process's own memory, or --own-service's GPU tier. 1GiB."),
    ] = None,
    block_tokens: Annotated[int, typer.Option(help="Tokens of a block: 8, 16, 32 or 64.")] = 16,
    reserve_tokens: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Of --kv contiguous: what each request has room for, the most that it may have. Default: "
            "the model's context, up to 2048.",
        ),
    ] = None,
    kvstore: Annotated[
        str, typer.Option(help="The service's socket, a path or unix:PATH. Default: this user's.")
    ] = "",
    host: Annotated[
        str, typer.Option(help="Address to listen on; one that others reach needs --api-key-file.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0: any that is free.")] = 8000,
    api_key_file: Annotated[
        Path | None, typer.Option(help="File with the key that requests have to bring, of mode 0600.")
    ] = None,
    running_max: Annotated[int, typer.Option(min=1, max=1024, help="Sequences computed at once.")] = 16,
    answers_at_once: Annotated[
        int, typer.Option(help="Answers under way or waiting; beyond that requests get status 429.")
    ] = DEFAULT.answers_at_once,
    choices: Annotated[int, typer.Option(help="Answers of one request (n).")] = DEFAULT.choices,
    answer_tokens: Annotated[
        int, typer.Option(help="Tokens of an answer, at the most.")
    ] = DEFAULT.answer_tokens,
    answer_tokens_default: Annotated[
        int, typer.Option(help="Tokens of a chat's answer where the request names no number.")
    ] = DEFAULT.answer_tokens_default,
    body_bytes: Annotated[int, typer.Option(help="Bytes of a request's body.")] = DEFAULT.body_bytes,
    messages: Annotated[int, typer.Option(help="Messages of a conversation.")] = DEFAULT.messages,
    connections: Annotated[int, typer.Option(help="Connections at once.")] = DEFAULT.connections,
    session_tokens: Annotated[
        int, typer.Option(help="Tokens of answers that are remembered for all sessions together.")
    ] = DEFAULT.session_tokens,
    request_seconds: Annotated[
        float, typer.Option(help="Until a request is done; it may ask for less.")
    ] = DEFAULT.request_seconds,
    stop_seconds: Annotated[
        float, typer.Option(help="For answers under way when the server is told to stop.")
    ] = DEFAULT.stop_seconds,
    attach_seconds: Annotated[
        float, typer.Option(help="For how long the service may be away when the server starts.")
    ] = 60.0,
    threads: Annotated[int, typer.Option(min=1, help="Threads of the model.")] = 2,
    own: Annotated[
        bool,
        typer.Option(
            "--own-service", help="Start a kvstore service too, if --kv has one, and end it at the end."
        ),
    ] = False,
    folder: Annotated[
        Path | None,
        typer.Option(help="Of --own-service: its folder, which stays. Default: a temporary one."),
    ] = None,
    gpu: Annotated[
        str | None,
        typer.Option(
            help="Of --own-service: its GPU tier, which is on a GPU if --device is; as --kv-memory, or a "
            "share like 25%. 1GiB."
        ),
    ] = None,
    cpu: Annotated[str | None, typer.Option(help="Of --own-service: its CPU tier. 1GiB.")] = None,
    disk_bytes: Annotated[str | None, typer.Option(help="Of --own-service: its disk tier. 4GiB.")] = None,
) -> None:
    """Answer OpenAI's HTTP API until SIGTERM or Ctrl-C."""
    if dtype not in DTYPES:
        _refuse("--dtype", dtype, f"there is no such type; there are {', '.join(DTYPES)}")
    key = _read_key(api_key_file)
    _check_host(host, has_key=bool(key))
    if own and kvstore:
        _refuse("--kvstore", kvstore, "with --own-service the service is its own")
    folder_name = str(folder) if folder is not None else None
    try:
        choice = choose_kv(
            kv,
            memory=kv_memory,
            block_tokens=block_tokens,
            reserve_tokens=reserve_tokens,
            device=device,
            kvstore=kvstore,
            is_own=own,
            tiers={"--gpu": gpu, "--cpu": cpu, "--disk-bytes": disk_bytes, "--folder": folder_name},
        )
        limits = Limits(
            body_bytes=body_bytes,
            messages=messages,
            choices=choices,
            answer_tokens=answer_tokens,
            answer_tokens_default=answer_tokens_default,
            answers_at_once=answers_at_once,
            connections=connections,
            session_tokens=session_tokens,
            request_seconds=request_seconds,
            stop_seconds=stop_seconds,
        )
    except (KVRefused, ValueError) as error:
        _fail(str(error), EXIT_REFUSED)
    options = Options(
        # As the path's last part, without what it is a file of.
        model=Path(model).name.removesuffix(".gguf"),
        kvstore=kvstore,
        host=host,
        port=port,
        api_key=key,
        set_up=choice.set_up,
        kv_bytes=choice.memory_bytes,
        block_tokens=choice.block_tokens,
        reserve_tokens=choice.reserve_tokens,
        running_max=running_max,
        attach_seconds=attach_seconds,
        limits=limits,
    )
    torch.set_num_threads(threads)
    try:
        uuid = gpu_uuid(device)
    except DeviceRefused as error:
        _fail(str(error), EXIT_REFUSED)
    place = ["--gpu-device", uuid] if uuid else []
    service: AbstractContextManager[str] = nullcontext(kvstore)
    if own and choice.set_up.has_service:
        has_disk = choice.set_up.has_lower_tiers
        service = own_service(folder, [*place, *choice.service_flags], has_disk=has_disk)
    _run(options, service, partial(load, model, dtype, device))


def _run(options: Options, service: AbstractContextManager[str], load_model: Callable[[], Loaded]) -> None:
    # Until the server takes the signals itself; as Ctrl-C does, this ends what was started.
    signal.signal(signal.SIGTERM, _interrupt)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    os.umask(0o077)
    try:
        with service as address:
            server = Server(replace(options, kvstore=address), load_model())
            _show(server.start(), options, address)
            is_good = server.serve()
    except (CannotListen, DeviceRefused, ModelNotFoundError, ModelRefused) as error:
        _fail(str(error), EXIT_REFUSED)
    except (ClientError, ServiceFailed, ValueError, OSError) as error:
        _fail(str(error), EXIT_FAILED)
    if not is_good:
        raise typer.Exit(EXIT_FAILED)


def main() -> None:
    try:
        app()
    except KeyboardInterrupt:
        _fail("stopped before it was ready", EXIT_FAILED)


def _show(url: str, options: Options, address: str) -> None:
    key = '-H "Authorization: Bearer $KEY" ' if options.api_key else ""
    message = (
        f'{{"model":"{options.model}","max_tokens":60,"messages":[{{"role":"user","content":"Hello!"}}]}}'
    )
    memory = f"{options.kv_bytes / 2**20:,.4g} MiB of its own, {options.set_up.name}"
    if options.set_up.has_service:
        memory = f"kvstore status --socket {address}"
    # At once, so that who reads the first line has the rest too.
    print(
        f"Serving {options.model} on {url}/v1 (Ctrl-C stops). Try:\n"
        f"  curl {url}/v1/chat/completions {key}-H 'Content-Type: application/json' -d '{message}'\n"
        f"The memory behind it: {memory}\n",
        end="",
        flush=True,
    )


def _read_key(path: Path | None) -> str:
    """The key, which is never shown; refused where it is none, or others may read it."""
    if path is None:
        return ""
    try:
        mode = path.stat().st_mode
        key = path.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        _refuse("--api-key-file", str(path), f"it can't be read: {error.__class__.__name__}")
    if stat.S_IMODE(mode) & 0o077:
        _refuse("--api-key-file", str(path), f"others may read it; remedy: chmod 600 {path}")
    if len(key) < 16 or not key.isprintable() or " " in key:
        _refuse("--api-key-file", str(path), "a key is one line of at least 16 printable characters")
    return key


def _check_host(host: str, *, has_key: bool) -> None:
    try:
        is_loopback = host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        _refuse("--host", host, "it is no IP address")
    if not is_loopback and not has_key:
        _refuse("--host", host, "whoever reaches it could use the model; remedy: add --api-key-file")


def _interrupt(number: int, frame: FrameType | None) -> NoReturn:
    raise KeyboardInterrupt


def _refuse(flag: str, value: str, why: str) -> NoReturn:
    _fail(f"{flag} {value}: {why}", EXIT_REFUSED)


def _fail(message: str, status: int) -> NoReturn:
    print(f"kvstore-engine: {message}", file=sys.stderr)
    raise SystemExit(status)


if __name__ == "__main__":
    main()
