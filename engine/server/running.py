"""A server on checked flags: the model is looked at, then loaded, the service started, and all of it ended.

What can still be refused is refused in that order, before anything is started. It needs torch, so it is
loaded when there is nothing wrong with the flags. Tests: tests/engine/server/test_serving.py.
"""

import json
import logging
import os
import shlex
import socket
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace

import torch

from engine.device import DeviceRefused
from engine.devices import gpu_bytes, gpu_uuid
from engine.models import DTYPES, ModelNotFoundError, open_model
from engine.refused import ModelRefused
from engine.server.ending import EXIT_FAILED, EXIT_REFUSED, fail
from engine.server.flags import FlagRefused, reason
from engine.server.kv_choice import check_gpu, check_room
from engine.server.listening import CannotListen
from engine.server.loading import Loaded, load_opened
from engine.server.options import Asked, Options
from engine.server.own_service import OwnService, ServiceFailed, ServiceRefused, own_service
from engine.server.serving import Server
from kvstore.client import ClientError

__all__ = ["run"]

REFUSALS = (FlagRefused, CannotListen, DeviceRefused, ModelNotFoundError, ServiceRefused)

log = logging.getLogger(__name__)


def run(options: Options, asked: Asked, bound: socket.socket) -> None:
    """Until the server is stopped; SystemExit where it can't be. `bound`: what it will listen on."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    try:
        uuid = gpu_uuid(asked.device)
        if uuid:
            check_gpu(asked.choice, asked.device, gpu_bytes(asked.device))
        torch.set_num_threads(asked.threads)
        loaded = _load(options, asked)
        # KV is as private as the prompts it comes from.
        os.umask(0o077)
        with _service(options, asked, ["--gpu-device", uuid] if uuid else []) as own:
            address = options.kvstore if own is None else own.address
            server = Server(replace(options, kvstore=address), loaded)
            if own is not None:
                own.on_failure(server.give_up)
            _show(server.start(bound), options, address)
            is_good = server.serve()
    except REFUSALS as error:
        fail(str(error), EXIT_REFUSED)
    except (ClientError, ServiceFailed, ValueError, OSError) as error:
        fail(str(error), EXIT_FAILED)
    if not is_good:
        raise SystemExit(EXIT_FAILED)


def _load(options: Options, asked: Asked) -> Loaded:
    """Its config and its tensors' headers first: whether there is room for it can be told from them."""
    name = asked.model
    try:
        model = open_model(name)
        layout = model.config.kv_layout(
            block_tokens=options.frame_tokens(model.config.context_length), dtype=DTYPES[asked.dtype]
        )
        check_room(asked.choice, layout.frame_stride_bytes)
        # Nothing else is heard until it is there, for half a minute on a slow machine.
        log.info("loading the model %s as %s on %s", name, asked.dtype, asked.device)
        return load_opened(name, model, asked.dtype, asked.device)
    except ModelRefused as error:
        # Most begin with the path that was typed; what is wrong in a file of the folder, with that.
        told = str(error)
        fail(f"--model {told}" if told.startswith(name) else f"--model {name}: {told}", EXIT_REFUSED)
    except OSError as error:
        raise FlagRefused("--model", name, reason(error), "a model whose files can be read") from error


def _service(options: Options, asked: Asked, place: list[str]) -> AbstractContextManager[OwnService | None]:
    set_up = asked.choice.set_up
    if not asked.is_own or not set_up.has_service:
        return nullcontext()
    flags = [*place, *asked.choice.service_flags]
    return own_service(asked.folder, flags, has_disk=set_up.has_lower_tiers)


def _show(url: str, options: Options, address: str) -> None:
    key = '-H "Authorization: Bearer $KEY" ' if options.api_key else ""
    hello = [{"role": "user", "content": "Hello!"}]
    message = json.dumps(
        {"model": options.model, "max_tokens": 60, "messages": hello},
        separators=(",", ":"),
        ensure_ascii=False,
    )
    memory = f"{options.kv_bytes / 2**20:,.4g} MiB of its own, {options.set_up.name}"
    if options.set_up.has_service:
        memory = f"kvstore status --socket {shlex.quote(address)}"
    # At once, so that who reads the first line has the rest too.
    print(
        f"Serving {options.model} on {url}/v1 (Ctrl-C stops). Try:\n"
        f"  curl {url}/v1/chat/completions {key}-H 'Content-Type: application/json' "
        f"-d {shlex.quote(message)}\n"
        f"The memory behind it: {memory}\n",
        end="",
        flush=True,
    )
