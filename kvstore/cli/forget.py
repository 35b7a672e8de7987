"""`kvstore forget`: takes out of a running service what a session, a tenant, a model or an engine left."""

import json
from typing import Annotated

import typer

from kvstore.cli.options import DEFAULT_SOCKET, Socket, operator
from kvstore.cli.texts import check_text, counted
from kvstore.core.errors import ConfigInvalid

__all__ = ["forget"]

EXIT_NOT_DONE = 1


def forget(
    socket: Socket = DEFAULT_SOCKET,
    session: Annotated[str, typer.Option(help="A chat session: the blocks that nobody else uses.")] = "",
    tenant: Annotated[
        str, typer.Option(help="All of a tenant; with --session, whose it is (else the default tenant's).")
    ] = "",
    namespace: Annotated[
        str, typer.Option(help="All of a model and layout, by its fingerprint in hex.")
    ] = "",
    engine: Annotated[
        str, typer.Option(help="All that an engine wrote, and what hangs on it: engines/UUID.")
    ] = "",
    whole_chain: Annotated[
        bool,
        typer.Option("--whole-chain", help="Of a session also what others use, with all that hangs on it."),
    ] = False,
    wait: Annotated[
        float, typer.Option(min=0, max=3600, help="Seconds to wait until it is done, durably.")
    ] = 60.0,
    yes: Annotated[bool, typer.Option("--yes", help="Don't ask.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the answer as one JSON object.")] = False,
) -> None:
    """Forget what is cached, in every tier, disk included.

    All that is named must hold of a block. Exit status 0: done. 1: not yet.
    """
    named = {"session": session, "tenant": tenant, "namespace": namespace, "engine": engine}
    named = {name: check_text(f"--{name}", value) for name, value in named.items() if value}
    if not named:
        raise ConfigInvalid(
            "nothing is named",
            field="--session",
            value="",
            remedy="name a --session, a --tenant, a --namespace or an --engine",
        )
    if not yes:
        what = " and ".join(f"{name} {value}" for name, value in named.items())
        if session and not tenant:
            what += " of the default tenant"
        whole = ", with what others use of it" if whole_chain else ""
        typer.confirm(f"Forget what is cached of {what}{whole}, on disk too?", abort=True)
    with operator(socket) as service:
        answer = service.forget(**named, whole_chain=whole_chain, seconds=wait)
    if as_json:
        shown = {"blocks_forgotten": answer.blocks_forgotten, "done": answer.done}
        typer.echo(json.dumps(shown))
    elif answer.done and not answer.blocks_forgotten:
        # A session is looked for in one tenant, and nobody may believe that it is gone from all.
        where = " in the default tenant (--tenant names another)" if session and not tenant else ""
        others = "; --whole-chain takes what others have used too" if session and not whole_chain else ""
        typer.echo(f"0 blocks forgotten: nothing was found{where} that is of this alone{others}.")
    elif answer.done:
        typer.echo(f"{counted(answer.blocks_forgotten, 'block')} forgotten.")
    else:
        typer.echo(
            f"{counted(answer.blocks_forgotten, 'block')} forgotten so far. Nothing of it can be found, but "
            "the disk has not deleted all: the service goes on with it. Ask again to see the end."
        )
    if not answer.done:
        raise typer.Exit(EXIT_NOT_DONE)
