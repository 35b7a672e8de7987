"""Commands of scenario files: what engines do (scenario_calls), what the world does, and what there is."""

import re
from collections.abc import Callable

from kvstore.core.answers import ForgetAnswer
from kvstore.core.calls import Forget, ForgetOn
from kvstore.core.types import NamespaceId, Tier, WriterId
from tests.core.scenario_calls import call_engine
from tests.core.scenario_scene import Scene
from tests.core.scenario_words import Line, ScenarioError, seconds_of
from tests.core.world import Moving

__all__ = ["play"]

WAIT_STEP_SECONDS = 0.5
TRANSFERS_MAX = 1_000


def play(scene: Scene, command: str, below: list[str]) -> list[str]:
    """What a command shows. The lines below it are the operations of a step."""
    line, operations = Line.parse(command), [Line.parse(each) for each in below]
    first = line.word("a command")
    if re.fullmatch(r"E\d+", first):
        lines = call_engine(scene, int(first[1:]), line, operations)
    elif first not in _COMMANDS or operations:
        known = ", ".join(("E1 …", *_COMMANDS))
        raise ScenarioError(f"{first!r} is no command, or has operations below it: {known}")
    else:
        lines = _COMMANDS[first](scene, line)
    line.done()
    return lines or ["ok"]


def _end(scene: Scene, line: Line) -> list[str]:
    """`end t1`, `end t1, failed 0 2`, `end t1, failed` (all its blocks), `end t1, late 0`, `end all`."""
    name = line.word("a transfer")
    if name == "all":
        return _end_all(scene)
    called = scene.telling.transfers
    moving = next((each for each in scene.world.under_way if called[each.transfer.id] == name), None)
    if moving is None:
        raise ScenarioError(f"{name} is not under way")
    failed: list[int] | None = None
    late = _places(line, "late", moving) if "late" in line.options else None
    if "failed" in line.options:
        count = len(moving.transfer.source_frames)
        failed = _places(line, "failed", moving)
        if moving.transfer.target is Tier.DISK:
            if len(failed) < count:
                raise ScenarioError(f"{name} writes to disk: that fails whole")
            for key in moving.transfer.keys:
                scene.world.shadow.disk.drop(key)
    return scene.telling.effects(scene.world.end(moving, failed, late))


def _places(line: Line, option: str, moving: Moving) -> list[int]:
    """Blocks of a transfer, counted from 0; without any named all of them."""
    count = len(moving.transfer.source_frames)
    places = line.numbers(option) or list(range(count))
    if max(places) >= count:
        raise ScenarioError(f"the transfer has blocks 0 to {count - 1}")
    return places


def _return(scene: Scene, line: Line) -> list[str]:
    """`return t1`: the device lets go of its late frames."""
    name, called = line.word("a transfer"), scene.telling.transfers
    moving = next((each for each in scene.world.late if called[each.transfer.id] == name), None)
    if moving is None:
        raise ScenarioError(f"no block of {name} is late")
    return scene.telling.effects(scene.world.return_frames(moving))


def _lost(scene: Scene, line: Line) -> list[str]:
    """`lost A1`: the disk finds the blocks bad by itself."""
    disk, wanted = scene.world.shadow.disk, set(scene.names.parse(line.rest()).keys)
    keys = [key for key in disk.find() if key.key in wanted]
    for key in keys:
        disk.drop(key)
    return scene.telling.effects(scene.world.lose(keys))


def _end_all(scene: Scene) -> list[str]:
    """All that is under way ends well, the oldest first, and what follows from it; each line once."""
    if not scene.world.under_way:
        return ["nothing is under way"]
    lines: list[str] = []
    for _ in range(TRANSFERS_MAX):
        if not scene.world.under_way:
            return list(dict.fromkeys(lines))
        lines += scene.telling.effects(scene.world.end(scene.world.under_way[0]))
    raise AssertionError("transfers go on and on")


def _tick(scene: Scene, line: Line) -> list[str]:
    """The store wakes up after so many seconds."""
    return scene.telling.effects(scene.world.tick(seconds_of(line.word("seconds"))))


def _wait(scene: Scene, line: Line) -> list[str]:
    """Seconds pass, the store awake all the time; each line once."""
    lines: list[str] = []
    for _ in range(int(seconds_of(line.word("seconds")) / WAIT_STEP_SECONDS)):
        lines += scene.telling.effects(scene.world.tick(WAIT_STEP_SECONDS))
    return list(dict.fromkeys(lines))


def _forget(scene: Scene, line: Line) -> list[str]:
    """`forget session chat`, `… tenant b`, `… namespace 2`, `… engine E1`, `forget goes on`."""
    kind, name = line.word("what"), line.word("its name")
    if (kind, name) == ("goes", "on") and scene.forget is not None:
        return scene.handle(ForgetOn(time=scene.world.time, forget=scene.forget))[1]
    if kind not in ("session", "tenant", "namespace", "engine"):
        raise ScenarioError(
            "forget session NAME, tenant NAME, namespace NUMBER, engine E1, or `forget goes on`"
        )
    event = Forget(
        time=scene.world.time,
        session=name if kind == "session" else "",
        tenant=name if kind == "tenant" else line.value("tenant"),
        namespace=NamespaceId(int(name) if kind == "namespace" else 0),
        writers=(WriterId(int(name[1:])),) if kind == "engine" else (),
        whole_chain=line.flag("whole"),
    )
    effects, lines = scene.handle(event)
    if isinstance(effects.answer, ForgetAnswer):
        scene.forget = effects.answer.forget
    return lines


def _synced(scene: Scene, line: Line) -> list[str]:
    """The disk answers the oldest question: `synced`, or `synced, failed`."""
    if not scene.world.syncs:
        raise ScenarioError("the disk has not been asked")
    return scene.telling.effects(scene.world.end_sync(failed=line.flag("failed")))


def _usage(scene: Scene, line: Line) -> list[str]:
    return scene.telling.usage(scene.world.store.usage())


def _sequences(scene: Scene, line: Line) -> list[str]:
    return scene.telling.sequences(list(scene.engines.values())) or ["none"]


def _found(scene: Scene, line: Line) -> list[str]:
    """`found A0..A3`: this lies on disk when the store starts."""
    scene.world.find(scene.names.parse(line.rest()).tokens)
    return []


def _restart(scene: Scene, line: Line) -> list[str]:
    """`restart`, or `restart, disk 4` with another size of the disk tier."""
    return scene.restart(line.number("disk", scene.config.disk))


_COMMANDS: dict[str, Callable[[Scene, Line], list[str]]] = {
    "end": _end,
    "forget": _forget,
    "synced": _synced,
    "tick": _tick,
    "wait": _wait,
    "usage": _usage,
    "sequences": _sequences,
    "found": _found,
    "lost": _lost,
    "return": _return,
    "restart": _restart,
}
