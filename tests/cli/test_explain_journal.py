"""Journals of runs whose engines and sessions are hard to tell apart, or to print: explain, and stories; and
journals of which a part is gone."""

import os
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from kvstore.cli.main import app
from kvstore.core import decisions
from kvstore.core.calls import Forget
from kvstore.core.errors import FieldInvalid, JournalInvalid
from kvstore.observe.folder import find_segments, segment_name
from kvstore.observe.journal import JOURNAL_BYTES_MIN
from tests.core.caller import Caller
from tests.core.ops import free
from tests.core.word import leave
from tests.core.world import World, make_store
from tests.observe.helpers import journaled, replay

FIRST, SECOND = (f"00000000-0000-4000-8000-00000000000{number}" for number in (1, 2))


def record(path: Path, engine: int, session: str) -> None:
    """A run in which this engine swaps out one sequence."""
    store = make_store(cpu_frames=16)
    with journaled(store, path, epoch=engine):
        caller = Caller(World(store, 1), engine)
        caller.allocate(1, 8, session=session)
        leave(caller, 1, 8)


def explain(path: Path, *flags: str) -> Result:
    return CliRunner().invoke(app, ["explain", "--journal", str(path), *flags])


def test_a_name_that_engines_of_two_runs_have_is_refused(tmp_path: Path) -> None:
    record(tmp_path, 1, "chat")
    record(tmp_path, 2, "chat")
    for flags in ((), ("--limit", "1")):
        result = explain(tmp_path, "--engine", "00000000", *flags)
        assert isinstance(result.exception, FieldInvalid), result.output
        words = f"engine = 00000000: 2 engines begin so: engines/{FIRST}, engines/{SECOND} (name more of it)"
        assert str(result.exception) == words
    for name in (FIRST, f"engines/{SECOND}"):
        result = explain(tmp_path, "--engine", name, "--json")
        assert (result.exit_code, result.stdout.count("\n")) == (0, 1), result.output
        assert name in result.stdout
    assert explain(tmp_path, "--engine", "ffff").exit_code == 1
    with pytest.raises(FieldInvalid, match="nor the beginning of one"):
        CliRunner().invoke(
            app, ["explain", "--journal", str(tmp_path), "--engine", "x"], catch_exceptions=False
        )


def test_a_name_ends_no_line(tmp_path: Path) -> None:
    record(tmp_path, 1, "a\nb\x1b[31m")
    assert r"(session a\nb\x1b[31m, engine 00000000, tenant a)" in explain(tmp_path).stdout
    story = replay(tmp_path, "--story", "session=a\nb\x1b[31m").stdout
    assert r"session a\nb\x1b[31m" in story
    assert "\x1b" not in story


# ------------------------------------------------------------------------------- tenants


def test_sessions_of_one_name_are_told_apart_by_their_tenant(tmp_path: Path) -> None:
    store = make_store(cpu_frames=32, gpu_frames=32)
    with journaled(store, tmp_path):
        caller = Caller(World(store, 1), 1)
        for sequence, tenant in ((1, "a"), (2, "b")):
            caller.allocate(sequence, 8, session="chat", tenant=tenant)
            leave(caller, sequence, 8)
    both = explain(tmp_path, "--session", "chat").stdout
    assert re.findall(r"sequence (\d) \(session chat, engine 00000000, tenant (\w)\)", both) == [
        ("1", "a"),
        ("2", "b"),
    ]
    for tenant, own in (("a", 1), ("b", 2)):
        for flags in (("--session", "chat"), ()):
            assert numbers(explain(tmp_path, "--tenant", tenant, *flags).stdout) == [own], flags
    nobody = explain(tmp_path, "--session", "chat", "--tenant", "c")
    assert (nobody.exit_code, nobody.stdout) == (1, "")
    assert "session chat and tenant c: not known" in nobody.stderr
    assert "Sessions in decisions: chat (tenants b, a)." in nobody.stderr
    assert "Tenants in decisions: b, a." in nobody.stderr


# ------------------------------------------------------------------- what is there no more


def record_long(path: Path, swaps: int = 240) -> None:
    """A run of several segments, in which sequence after sequence is swapped out and freed."""
    store = make_store(gpu_frames=16, cpu_frames=16)
    with journaled(store, path, bytes_max=JOURNAL_BYTES_MIN):
        caller = Caller(World(store, 1), 1)
        for sequence in range(1, swaps + 1):
            caller.world.tick()
            caller.allocate(sequence, 8, session="chat" if sequence % 2 else "other")
            leave(caller, sequence, 8)
            caller.step(free(sequence))


def numbers(told: str) -> list[int]:
    return [int(each) for each in re.findall(r"swap of sequence (\d+)", told)]


def test_of_a_run_whose_beginning_is_overwritten_it_is_told_from_when_on_what_is_known(
    tmp_path: Path,
) -> None:
    record_long(tmp_path)
    whole = explain(tmp_path, "--limit", "0", "--kind", "swap")
    assert (numbers(whole.stdout), whole.stderr) == (list(range(1, 241)), "")
    segments = find_segments(tmp_path)
    assert len(segments) > 1
    segments[0].unlink()
    cut = explain(tmp_path, "--limit", "0")
    assert cut.exit_code == 0, cut.output
    # What engines were answered is in what is left; the same words, of the same moments.
    assert cut.stdout
    assert whole.stdout.endswith(cut.stdout)
    kept = numbers(cut.stdout)
    assert kept == list(range(kept[0], 241))
    assert kept[0] > 1
    [gap] = cut.stderr.splitlines()
    first = cut.stdout[: len("1970-01-01 00:00:00.000")]
    known = re.search(r"something is known from (\S+ \S+) UTC on\. What was decided before isn't known", gap)
    assert known is not None, gap
    assert "1970-01-01 00:00:00.000" < known[1] <= first
    assert "only swaps and drops that engines asked for are known" in gap
    # Nothing that is not known is denied.
    none = explain(tmp_path, "--kind", "evict")
    assert none.stdout == ""
    assert none.stderr == f"{gap}\nNo decision of the kind evict is among what is known.\n"
    chat = explain(tmp_path, "--session", "chat", "--limit", "0")
    assert numbers(chat.stdout) == [each for each in kept if each % 2]


def test_what_was_forgotten_is_told_of_no_part_of_a_run(tmp_path: Path) -> None:
    store = make_store(gpu_frames=16, cpu_frames=16)
    with journaled(store, tmp_path, bytes_max=JOURNAL_BYTES_MIN):
        caller = Caller(World(store, 1), 1)
        for sequence in range(1, 301):
            caller.allocate(sequence, 8, session="secret" if sequence % 2 else "other")
            leave(caller, sequence, 8)
            caller.step(free(sequence))
        caller.world.handle(Forget(time=caller.world.time, session="secret"))
    find_segments(tmp_path)[0].unlink()
    told = explain(tmp_path, "--limit", "0").stdout
    assert "session other" in told
    assert "secret" not in told


def test_a_step_that_was_asked_again_is_told_once(tmp_path: Path) -> None:
    store = make_store(gpu_frames=16, cpu_frames=16)
    with journaled(store, tmp_path, bytes_max=JOURNAL_BYTES_MIN):
        caller = Caller(World(store, 1), 1)
        for sequence in range(1, 201):
            caller.allocate(sequence, 8)
            leave(caller, sequence, 8)
            caller.step_number -= 1
            leave(caller, sequence, 8)
            caller.step(free(sequence))
    find_segments(tmp_path)[0].unlink()
    kept = numbers(explain(tmp_path, "--limit", "0").stdout)
    assert kept == list(range(kept[0], 201))


def test_runs_that_are_gone_altogether_are_told_of(tmp_path: Path) -> None:
    record(tmp_path, 1, "old")
    record(tmp_path, 2, "new")
    assert explain(tmp_path).stderr == ""
    find_segments(tmp_path)[0].unlink()
    done = explain(tmp_path)
    assert numbers(done.stdout) == [1]
    assert done.stderr == (
        "Known from 1970-01-01 00:00:00.000 UTC on. What was decided before isn't known: a segment of the "
        "journal is overwritten.\n"
    )
    # Who names a segment alone asks of that one.
    assert explain(tmp_path / segment_name(2)).stderr == ""


def test_an_end_that_is_torn_is_told_with_the_moment_until_which_all_is_known(tmp_path: Path) -> None:
    record(tmp_path, 1, "chat")
    [segment] = find_segments(tmp_path)
    segment.write_bytes(segment.read_bytes() + b"\x40")
    done = explain(tmp_path)
    assert numbers(done.stdout) == [1]
    assert re.fullmatch(
        r"Known until 1970-01-01 00:00:\d\d\.\d{3} UTC: 0000000001\.journal ends in 1 byte of an unfinished "
        r"record\. What was decided after that in this run isn't known: its service was killed, or is "
        r"writing still\.\n",
        done.stderr,
    ), done.stderr


def test_a_segment_in_which_nothing_is_whole_is_told_of(tmp_path: Path) -> None:
    record(tmp_path, 1, "chat")
    (tmp_path / segment_name(2)).write_bytes(find_segments(tmp_path)[0].read_bytes()[:50])
    done = explain(tmp_path)
    assert numbers(done.stdout) == [1]
    assert done.stderr.startswith("0000000002.journal holds no whole record: the service that began to write")


def test_of_more_decisions_than_are_remembered_it_is_told_since_when_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record_long(tmp_path, swaps=8)
    assert explain(tmp_path).stderr == ""
    monkeypatch.setattr(decisions, "KEPT_MAX", 5)
    done = explain(tmp_path)
    assert numbers(done.stdout) == [4, 5, 6, 7, 8]
    first = done.stdout[: len("1970-01-01 00:00:00.000")]
    assert done.stderr == (
        "Of the kind swap the last 5 of the run that began at 1970-01-01 00:00:00.000 UTC are remembered, "
        f"from {first} UTC on.\n"
    )
    assert "the last 5 of" in explain(tmp_path, "--kind", "swap").stderr
    assert "the last 5 of" not in explain(tmp_path, "--kind", "evict").stderr


@pytest.mark.parametrize("named", ["folder", "file"])
def test_what_is_no_regular_file_is_refused_and_not_waited_for(tmp_path: Path, named: str) -> None:
    record(tmp_path, 1, "chat")
    pipe = tmp_path / segment_name(2)
    os.mkfifo(pipe)
    with pytest.raises(JournalInvalid, match=r"0000000002\.journal: is no regular file"):
        CliRunner().invoke(
            app,
            ["explain", "--journal", str(tmp_path if named == "folder" else pipe)],
            catch_exceptions=False,
        )


def test_a_folder_without_a_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(JournalInvalid, match="no run is recorded there"):
        CliRunner().invoke(app, ["explain", "--journal", str(tmp_path)], catch_exceptions=False)
