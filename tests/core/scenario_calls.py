"""What engines do in a scenario: their calls, and their work on the GPU."""

from collections.abc import Callable

from kvstore.core.answers import KeepAliveAnswer, StepAnswer
from kvstore.core.calls import Attach, Detach, KeepAlive, Lookup, Prefetch, Retain, Single, Step
from kvstore.core.events import Event, TetherOpened, TethersClosed
from kvstore.core.operations import Operation
from kvstore.core.types import BlockKey, NamespaceId, SequenceState, StepNumber, Tier, WriterId
from tests.core.scenario_engine import Engine
from tests.core.scenario_operations import parse_operation
from tests.core.scenario_scene import Scene
from tests.core.scenario_words import Line, ScenarioError, number_of, seconds_of

__all__ = ["call_engine"]

LEASE_SECONDS = 10.0


def call_engine(scene: Scene, number: int, line: Line, operations: list[Line]) -> list[str]:
    verb = line.word("what the engine does")
    if verb not in _VERBS:
        raise ScenarioError(f"{verb!r} is nothing an engine does: {', '.join(_VERBS)}")
    if verb == "attach":
        scene.engines.setdefault(number, Engine(number))
    if number not in scene.engines:
        raise ScenarioError(f"E{number} has never attached")
    if operations and verb not in ("step", "single"):
        raise ScenarioError(f"operations stand below a step, not below {verb!r}")
    return _VERBS[verb](scene, scene.engines[number], line, operations)


# ---------------------------------------------------------------------------------- calls


def _attach(scene: Scene, engine: Engine, line: Line, below: list[Line]) -> list[str]:
    """`unmapped`: dies before it has fetched the descriptors of the pool."""
    event = Attach(
        time=scene.world.time,
        engine=engine.id,
        request_id=f"request of E{engine.number}",
        namespace=NamespaceId(line.number("namespace", 1)),
        writer=WriterId(engine.number),
        build="test",
        lease_seconds=LEASE_SECONDS,
    )
    unmapped = line.flag("unmapped")
    _, lines = scene.handle(event)
    if lines == ["attached"] and not unmapped:
        scene.handle(TetherOpened(time=scene.world.time, engine=engine.id, pid=1000 + engine.number))
    return lines


def _step(scene: Scene, engine: Engine, line: Line, below: list[Line]) -> list[str]:
    """Unless said otherwise the next number, all work before it completed."""
    number = number_of(line.word("a step"), "", "a step has a number") if line.words else engine.step + 1
    completed = line.number("completed", max(number - 1, 0))
    line.done()
    operations = _operations(scene, engine, below)
    event = Step(
        time=scene.world.time,
        engine=engine.id,
        step=StepNumber(number),
        completed_step=StepNumber(completed),
        operations=operations,
    )
    return _take(scene, engine, event, operations)


def _computes(scene: Scene, engine: Engine, line: Line, below: list[Line]) -> list[str]:
    """`E1 computes s1 A0..A3`: allocates it, writes what is not cached, and commits it."""
    sequence, words, options = line.sequence(), line.rest(), line.options
    line.options = {}
    name = f"s{sequence}"
    lines = _step(scene, engine, Line.of(), [Line(line.text, ["allocate", name, *words], options)])
    if engine.held(sequence).state is not SequenceState.RESIDENT:
        raise ScenarioError(f"{name} can't be computed yet: {lines}")
    _write(scene, engine, Line.of(name), [])
    return lines + _step(scene, engine, Line.of(), [Line.of("commit", name)])


def _single(scene: Scene, engine: Engine, line: Line, below: list[Line]) -> list[str]:
    operations = _operations(scene, engine, below)
    if len(operations) != 1:
        raise ScenarioError("one operation stands below `single`")
    event = Single(time=scene.world.time, engine=engine.id, operation=operations[0])
    return _take(scene, engine, event, operations)


def _operations(scene: Scene, engine: Engine, below: list[Line]) -> tuple[Operation, ...]:
    operations: list[Operation] = []
    for place, line in enumerate(below, 1):
        try:
            operations.append(parse_operation(engine, scene.names, line))
        except ScenarioError as error:
            error.lines_below = place
            raise
    return tuple(operations)


def _take(scene: Scene, engine: Engine, event: Event, operations: tuple[Operation, ...]) -> list[str]:
    effects, lines = scene.handle(event, operations, engine.seen)
    if isinstance(effects.answer, StepAnswer):
        if effects.answer is engine.last_answer:
            return ["the same answer as before"]
        engine.take_answer(operations, effects.answer, scene.world)
    return lines


def _keepalive(scene: Scene, engine: Engine, line: Line, below: list[Line]) -> list[str]:
    event = KeepAlive(
        time=scene.world.time,
        engine=engine.id,
        completed_step=StepNumber(line.number("completed", engine.step)),
        seen_revision=engine.seen,
    )
    effects, lines = scene.handle(event, seen=engine.seen)
    if isinstance(effects.answer, KeepAliveAnswer):
        engine.take_notices(effects.answer.notices)
    return lines


def _lookup(scene: Scene, engine: Engine, line: Line, below: list[Line]) -> list[str]:
    keys = scene.names.parse(line.rest()).keys
    event = Lookup(time=scene.world.time, engine=engine.id, block_keys=keys, tenant=line.value("tenant"))
    return scene.handle(event)[1]


def _prefetch(scene: Scene, engine: Engine, line: Line, below: list[Line]) -> list[str]:
    """`prefetch A0..A3` or `prefetch session chat`; `, gpu`."""
    keys, session = _named(scene, line)
    event = Prefetch(
        time=scene.world.time,
        engine=engine.id,
        block_keys=keys,
        session=session,
        target=Tier.GPU if line.one_of("cpu", "gpu") == "gpu" else Tier.CPU,
        tenant=line.value("tenant"),
    )
    return scene.handle(event)[1]


def _retain(scene: Scene, engine: Engine, line: Line, below: list[Line]) -> list[str]:
    """`retain A0..A3` or `retain session chat`; `, seconds 5`, `, priority 1`."""
    keys, session = _named(scene, line)
    event = Retain(
        time=scene.world.time,
        engine=engine.id,
        ttl_seconds=seconds_of(line.value("seconds", "60")),
        block_keys=keys,
        session=session,
        priority=line.number("priority", 0),
        tenant=line.value("tenant"),
    )
    return scene.handle(event)[1]


def _named(scene: Scene, line: Line) -> tuple[tuple[BlockKey, ...], str]:
    words = line.rest()
    if words[:1] == ["session"] and len(words) == 2:
        return (), words[1]
    return scene.names.parse(words).keys, ""


def _detach(scene: Scene, engine: Engine, line: Line, below: list[Line]) -> list[str]:
    return scene.handle(Detach(time=scene.world.time, engine=engine.id))[1]


def _dies(scene: Scene, engine: Engine, line: Line, below: list[Line]) -> list[str]:
    """Its processes are gone: the last tether has closed, and what they had launched never runs."""
    scene.world.pending.pop(engine.number, None)
    return scene.handle(TethersClosed(time=scene.world.time, engine=engine.id))[1]


# ------------------------------------------------------------------------- work on the GPU


def _write(scene: Scene, engine: Engine, line: Line, below: list[Line]) -> list[str]:
    """A kernel that runs at once: `write s1`, or `write s1 A0..A3` where no prompt was named."""
    _enqueue(scene, engine, line, "write")
    scene.world.execute(engine.number, engine.step)
    return []


def _read(scene: Scene, engine: Engine, line: Line, below: list[Line]) -> list[str]:
    """Attention over all that is filled; stops the scenario at the first wrong byte."""
    sequence = _enqueue(scene, engine, line, "read")
    scene.world.execute(engine.number, engine.step)
    held = engine.held(sequence)
    return [f"reads {held.text.head(held.filled)}"]


def _launch(scene: Scene, engine: Engine, line: Line, below: list[Line]) -> list[str]:
    """Work that stands in the engine's stream until `E1 runs STEP`."""
    _enqueue(scene, engine, line, line.word("read or write"))
    return []


def _runs(scene: Scene, engine: Engine, line: Line, below: list[Line]) -> list[str]:
    """The engine's stream runs the work of its steps up to this one."""
    scene.world.execute(engine.number, number_of(line.word("a step"), "", "runs STEP"))
    return []


def _enqueue(scene: Scene, engine: Engine, line: Line, verb: str) -> int:
    sequence = line.sequence()
    text = scene.names.parse(line.rest())
    if verb not in ("read", "write") or (verb == "read" and text.tokens):
        raise ScenarioError("read s1, write s1 or write s1 TEXT")
    work = engine.read(sequence) if verb == "read" else engine.write(sequence, text)
    scene.world.enqueue(engine.number, engine.step, work)
    return sequence


_VERBS: dict[str, Callable[[Scene, Engine, Line, list[Line]], list[str]]] = {
    "attach": _attach,
    "step": _step,
    "computes": _computes,
    "single": _single,
    "keepalive": _keepalive,
    "lookup": _lookup,
    "prefetch": _prefetch,
    "retain": _retain,
    "detach": _detach,
    "dies": _dies,
    "write": _write,
    "read": _read,
    "launch": _launch,
    "runs": _runs,
}
