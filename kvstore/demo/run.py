"""The demo from start to end: plays the plan, kills and restarts on the way, then runs all turns plainly.

Watches from outside only: what it knows, it has from what engines tell and from the service's usage.
"""

import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from engine.device import DeviceRefused
from engine.devices import gpu_uuid
from kvstore.demo.children import Child, DemoRefused, Service
from kvstore.demo.model import Model, open_model
from kvstore.demo.plan import (
    ANSWER_TOKENS,
    CPU_FRAMES,
    DISK_FRAMES,
    GPU_FRAMES,
    PLAN,
    PROMPT_TOKENS,
    SESSIONS,
    Wave,
)
from kvstore.demo.show import Show
from kvstore.demo.texts import Conversation, read_documents
from kvstore.demo.turns import Report, Turn
from kvstore.demo.worker import Line, Worker

__all__ = ["run_demo"]

# The disk tier's index takes a little, beside its blocks.
DISK_SPARE_BYTES = 64 << 20
GPU_PAGE_BYTES = 2 << 20


def run_demo(
    model_name: str, show: Show, keep: Path | None = None, device: str = "cpu", journal: Path | None = None
) -> Report:
    """`keep`: a folder for logs, journal and disk tier, which stays; without it there is one that goes.

    `device`: where engines compute, and where the GPU tier is. `journal`: a folder for what the service has
    recorded, if that is to stay whatever becomes of the rest; by default it is in the other folder. Both are
    there and empty (`flags.take_folders`).
    """
    try:
        uuid = gpu_uuid(device)
    except DeviceRefused as error:
        raise DemoRefused(str(error)) from error
    model = open_model(model_name)
    turn_count = sum(len(wave.turns) for wave in PLAN)
    with _folder(keep) as folder, show.progress(2 * turn_count * ANSWER_TOKENS):
        demo = _Demo(model, folder, journal or folder / "journal", show, device, uuid)
        try:
            demo.play()
            demo.run_plainly()
        finally:
            demo.close()
    return demo.report()


class _Demo:
    def __init__(
        self, model: Model, folder: Path, journal: Path, show: Show, device: str, gpu_device: str
    ) -> None:
        self._device = device
        # Of the GPU that the GPU tier is on; empty: it is in host memory.
        self._gpu_device = gpu_device
        self._model = model
        self._folder = folder
        self._journal = journal
        self._show = show
        documents = read_documents(SESSIONS)
        self._conversations = [Conversation(document, model.tokenizer) for document in documents]
        self._turns: list[Turn] = []
        # As engines have told them: keys and digests, in hexadecimal.
        self._digests: list[tuple[str, str]] = []
        # Each engine's last word on the blocks that it has compared.
        self._counts: dict[str, Mapping[str, int]] = {}
        # All that was ever started, to be ended whatever happens.
        self._children: list[Child] = []
        self._services = self._engines = self._kills = 0

    def play(self) -> None:
        """All waves over kvstore."""
        self._show.say("[bold]start of the service, and of an engine[/]")
        service = self._start_service()
        engine = self._start_engine(service)
        for wave in PLAN:
            self._show.say(f"[bold]{wave.title}[/]")
            if wave.restarts_service:
                service.end()
                service = self._start_service()
                self._until_attached(engine, service)
            engine = self._play_wave(wave, service, engine)
            service.rest()
        for line in engine.finish():
            self._take(engine, {}, line)
        service.end()

    def run_plainly(self) -> None:
        """The same prompts, one after the other, nothing cached."""
        self._show.say("[bold]the same turns without kvstore[/]")
        self._show.doing("an engine loads the model")
        plain = Worker("plain", self._folder, model=self._model.name, device=self._device)
        self._children.append(plain)
        for turn in self._turns:
            self._show.doing(f"{turn.id} without kvstore")
            plain.send(self._request(turn))
            turn.take_plain_answer(plain.receive())
            self._show.advance(ANSWER_TOKENS)
            self._show.plain_turn_done(turn)
        plain.finish()

    def close(self) -> None:
        for child in reversed(self._children):
            child.end()

    def report(self) -> Report:
        counts = list(self._counts.values())
        return Report(
            turns=self._turns,
            blocks_verified=sum(each["verified"] for each in counts),
            blocks_wrong=sum(each["wrong"] for each in counts),
            blocks_unknown=sum(each["unknown"] for each in counts),
            engine_kills=self._kills,
            service_restarts=self._services - 1,
        )

    # --------------------------------------------------------------------------- waves

    def _play_wave(self, wave: Wave, service: Service, engine: Worker) -> Worker:
        """Returns the engine that lives at the end of it."""
        turns = [self._begin(*each) for each in wave.turns]
        running = {turn.id: turn for turn in turns}
        self._show.doing(f"{len(running)} turns at once")
        for turn in running.values():
            engine.send(self._request(turn))
        kills_at = wave.kills_engine_at
        while running:
            self._take(engine, running, engine.receive(service))
            if kills_at and running and all(turn.token_count >= kills_at for turn in running.values()):
                kills_at = 0
                engine = self._replace(engine, service, running)
        return engine

    def _begin(self, session: int, number: int) -> Turn:
        conversation = self._conversations[session]
        prompt = conversation.next_prompt(number, PROMPT_TOKENS[number - 1])
        turn = Turn(session=conversation.name, number=number, prompt=prompt)
        self._turns.append(turn)
        return turn

    def _replace(self, engine: Worker, service: Service, running: dict[str, Turn]) -> Worker:
        """Kills the engine, and lets another do its turns from the start."""
        for line in engine.kill():
            # What it had answered in its last moment nobody has received: those turns are done again.
            if line["event"] in ("digests", "blocks"):
                self._take(engine, {}, line)
        self._kills += 1
        self._show.say("  the engine is killed; another one starts")
        engine = self._start_engine(service)
        for turn in running.values():
            self._show.advance(-turn.token_count)
            turn.redone, turn.token_count = True, 0
            engine.send(self._request(turn))
        return engine

    def _take(self, engine: Worker, running: dict[str, Turn], line: Line) -> None:
        match line["event"]:
            case "digests":
                self._digests += [(key, digest) for key, digest in line["digests"]]
            case "blocks":
                self._counts[engine.name] = line
            case "admitted":
                running[line["request"]].take_admission(line)
            case "token":
                turn = running[line["request"]]
                self._show.advance(line["count"] - turn.token_count)
                turn.token_count = line["count"]
            case "finished":
                self._end(running.pop(line["request"]), line)
            case "failed":
                engine.fail(f"turn {line['request']} was refused: {line['reason']}")

    def _end(self, turn: Turn, line: Line) -> None:
        turn.take_answer(line)
        self._show.advance(ANSWER_TOKENS - turn.token_count)
        self._show.turn_done(turn)
        [conversation] = [each for each in self._conversations if each.name == turn.session]
        conversation.take_answer(turn.tokens)

    def _request(self, turn: Turn) -> Line:
        return {
            "request": turn.id,
            "prompt": turn.prompt,
            "max_new_tokens": ANSWER_TOKENS,
            "session": turn.session,
            "turn": turn.number,
            "stop": sorted(self._model.tokenizer.eos_ids),
        }

    # ------------------------------------------------------------------------ children

    def _start_service(self) -> Service:
        self._services += 1
        frame_bytes = self._model.frame_bytes
        # The service rounds down to pages of the GPU; a few frames more change nothing of the plan.
        page_bytes = GPU_PAGE_BYTES if self._gpu_device else 1
        service = Service(
            f"service-{self._services}",
            self._folder,
            journal=self._journal,
            gpu_bytes=-(-GPU_FRAMES * frame_bytes // page_bytes) * page_bytes,
            gpu_device=self._gpu_device,
            cpu_bytes=CPU_FRAMES * frame_bytes,
            disk_bytes=DISK_FRAMES * frame_bytes + DISK_SPARE_BYTES,
        )
        self._children.append(service)
        service.until_answered()
        return service

    def _start_engine(self, service: Service) -> Worker:
        self._show.doing("an engine loads the model")
        self._engines += 1
        name = f"engine-{self._engines}"
        engine = Worker(
            name, self._folder, model=self._model.name, device=self._device, address=service.address
        )
        self._children.append(engine)
        engine.send({"digests": self._digests})
        self._until_attached(engine, service)
        return engine

    def _until_attached(self, engine: Worker, service: Service) -> None:
        while (line := engine.receive(service))["event"] != "attached":
            self._take(engine, {}, line)


@contextmanager
def _folder(keep: Path | None) -> Iterator[Path]:
    if keep is not None:
        yield keep
        return
    # Short, because the path of a socket may not be long.
    with tempfile.TemporaryDirectory(prefix="kvdemo-", ignore_cleanup_errors=True) as folder:
        yield Path(folder)
