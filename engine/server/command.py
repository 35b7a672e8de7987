"""The `kvstore-engine` program: flags in, each checked, and the server run on them.

Nothing that is slow to load is loaded before all flags have been found right. Tests:
tests/engine/server/test_flags.py, test_program.py.
"""

import signal
import socket
from types import FrameType
from typing import Annotated, NoReturn

import typer

from engine.names import DEVICE_HELP, DTYPE_NAMES, MODEL_NAMES, is_device
from engine.server.ending import EXIT_FAILED, EXIT_REFUSED, fail, fail_for_want_of
from engine.server.flags import (
    FlagRefused,
    check_between,
    check_host,
    check_model,
    check_one_of,
    check_socket,
    model_name,
    read_key,
)
from engine.server.folder import make_service_folder
from engine.server.kv_choice import choose_kv
from engine.server.limits import SECONDS_MAX, Limits
from engine.server.listening import CannotListen, bind
from engine.server.options import Asked, Options
from kvstore import __version__

__all__ = ["app", "main"]

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


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"kvstore-engine {__version__}")
        raise typer.Exit


@app.callback()
def _program(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """With a callback a single command keeps its name."""


@app.command()
def serve(
    model: Annotated[
        str,
        typer.Option(help=f"{', '.join(MODEL_NAMES)}, a GGUF file, or a folder with safetensors."),
    ] = "smollm2",
    dtype: Annotated[str, typer.Option(help=f"Of weights and KV: {', '.join(DTYPE_NAMES)}.")] = "fp32",
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
        str | None, typer.Option(help="The service's socket, a path or unix:PATH. Default: this user's.")
    ] = None,
    host: Annotated[
        str, typer.Option(help="Address to listen on; one that others reach needs --api-key-file.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0: any that is free.")] = 8000,
    api_key_file: Annotated[
        str | None, typer.Option(help="File with the key that requests have to bring, of mode 0600.")
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
    threads: Annotated[int, typer.Option(min=1, max=1024, help="Threads of the model.")] = 2,
    own: Annotated[
        bool,
        typer.Option(
            "--own-service", help="Start a kvstore service too, if --kv has one, and end it at the end."
        ),
    ] = False,
    folder: Annotated[
        str | None,
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
    try:
        check_model(model)
        check_one_of("--dtype", dtype, "there is no such type", DTYPE_NAMES)
        if not is_device(device):
            raise FlagRefused("--device", device, "there is no such device", "cpu, cuda or cuda:N")
        if kvstore is not None:
            if own:
                raise FlagRefused(
                    "--kvstore", kvstore, "with --own-service the service is its own", "give one"
                )
            check_socket("--kvstore", kvstore)
        choice = choose_kv(
            kv,
            memory=kv_memory,
            block_tokens=block_tokens,
            reserve_tokens=reserve_tokens,
            device=device,
            kvstore=kvstore or "",
            is_own=own,
            tiers={"--gpu": gpu, "--cpu": cpu, "--disk-bytes": disk_bytes, "--folder": folder},
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
        check_between("--attach-seconds", attach_seconds, 0, SECONDS_MAX)
        key = read_key(api_key_file) if api_key_file is not None else ""
        check_host(host, has_key=bool(key))
        with bind(host, port) as bound:
            # The last, because it leaves something behind.
            place = make_service_folder("--folder", folder) if folder is not None else None
            options = Options(
                model=model_name(model),
                kvstore=kvstore or "",
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
            asked = Asked(
                model=model,
                dtype=dtype,
                device=device,
                threads=threads,
                choice=choice,
                is_own=own,
                folder=place,
            )
            _run(options, asked, bound)
    except (FlagRefused, CannotListen) as error:
        fail(str(error), EXIT_REFUSED)


def _run(options: Options, asked: Asked, bound: socket.socket) -> None:
    # Until the server takes the signals itself; as Ctrl-C does, this ends what was started.
    signal.signal(signal.SIGTERM, _interrupt)
    # Imported here: it takes seconds, and there is nothing wrong with the flags.
    try:
        from engine.server.running import run
    except ModuleNotFoundError as error:
        fail_for_want_of(error)
    run(options, asked, bound)


def main() -> None:
    try:
        app()
    except KeyboardInterrupt:
        fail("stopped before it was ready", EXIT_FAILED)


def _interrupt(number: int, frame: FrameType | None) -> NoReturn:
    raise KeyboardInterrupt


if __name__ == "__main__":
    main()
