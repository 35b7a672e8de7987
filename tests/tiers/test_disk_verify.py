"""`kvstore verify`: whatever is done to a folder, it says what is wrong; repaired, what is left is served."""

import json
import os
import shutil
from contextlib import closing

import pytest
from typer.testing import CliRunner

from kvstore.cli.main import app
from kvstore.core.errors import DiskInvalid
from kvstore.tiers.disk_dump import check_index
from kvstore.tiers.disk_format import block_name
from kvstore.tiers.disk_verify import verify
from tests.tiers.helpers import (
    BLOCK,
    chain,
    change_bytes,
    change_raw,
    open_tier,
    stored,
    write,
)
from tests.tiers.verified import COUNT, SMALL, check_repaired, content, look

SLOT = 12_288


# ----------------------------------------------------------------------------- one by one


def test_a_good_folder_is_good_and_left_as_it_is(folder):
    before = content(folder)
    seen: list[tuple[int, int]] = []
    report = verify(folder, repair=True, progress=lambda done, total: seen.append((done, total)))
    assert report.is_good
    assert (report.blocks_good, report.bytes_good, report.sessions_good) == (COUNT, COUNT * BLOCK, 1)
    assert seen[-1] == (COUNT * SLOT, COUNT * SLOT)
    assert content(folder) == before


def test_wrong_bytes_are_found_with_what_hangs_on_them(folder):
    change_bytes(folder, stored(6), SLOT, lambda value: b"?" + value[1:])
    change_bytes(folder, stored(50), SLOT, lambda value: bytes(len(value)))
    before = content(folder)
    report = look(folder)
    assert report.damages == {"bytes": 2, "orphan": 3 + 9}
    assert {each.what for each in report.listed if each.kind == "bytes"} == {
        block_name(stored(n)).hex() for n in (6, 50)
    }
    assert content(folder) == before
    assert look(folder, repair=True).repaired
    check_repaired(folder, COUNT - 14)


@pytest.mark.parametrize(
    ("table", "name", "change", "damages", "good"),
    [
        ("blocks", block_name(stored(9)), lambda v: v[:-1] + b"?", {"entry": 1}, COUNT - 1),
        ("blocks", b"strange", lambda v: b"entry", {"entry": 1}, COUNT),
        ("tenants", b"default", lambda v: b"?" + v[1:], {"name": 1 + COUNT}, 0),
        ("writers", b"engine\0build", lambda v: b"?" + v[1:], {"name": 1}, COUNT),
        ("namespaces", b"f" * 32, lambda v: None, {"name": COUNT}, 0),
        ("meta", b"geometry", lambda v: b"?" + v[1:], {"meta": 1, "segment": 5}, 0),
        ("meta", b"geometry", lambda v: None, {"meta": 1, "segment": 5}, 0),
        ("meta", b"magic", lambda v: b"?" + v[1:], {"meta": 1}, COUNT),
        ("meta", b"format", lambda v: v[:2], {"meta": 1}, COUNT),
    ],
)
def test_damaged_records(folder, table, name, change, damages, good):
    change_raw(folder, table, name, change)
    assert look(folder).damages == damages
    assert look(folder, repair=True).repaired
    check_repaired(folder, good)


def test_a_missing_and_a_cut_off_segment_and_swapped_ones(folder):
    segments = sorted(folder.glob("segment-*"))
    assert len(segments) == 5
    os.truncate(segments[0], SLOT + 100)
    segments[1].rename(folder / "aside")
    segments[2].rename(segments[1])
    (folder / "aside").rename(segments[2])
    segments[4].unlink()
    report = look(folder)
    assert set(report.damages) == {"bytes", "place", "segment", "orphan"}
    assert look(folder, repair=True).repaired
    check_repaired(folder, report.blocks_good)
    assert report.blocks_good > 0


def test_the_index_of_another_folder(folder, tmp_path):
    with closing(open_tier(tmp_path / "other", SMALL)) as tier:
        write(tier, chain(20, 300))
    shutil.copy(tmp_path / "other" / "data.mdb", folder / "data.mdb")
    report = look(folder)
    assert report.damages["bytes"] == 20
    assert report.blocks_good == 0
    assert look(folder, repair=True).repaired
    check_repaired(folder, 0)


def test_no_index_at_all(folder):
    (folder / "data.mdb").unlink()
    assert look(folder).damages == {"index": 1, "segment": 5}
    assert look(folder, repair=True).repaired
    check_repaired(folder, 0)


def test_strange_files_are_told_and_left_alone(folder):
    (folder / "thesis.txt").write_text("mine")
    (folder / "segment-notes").mkdir()
    report = look(folder, repair=True)
    assert report.is_good
    assert report.strange_files == ["segment-notes", "thesis.txt"]


# -------------------------------------------------------------------------------- command


def test_names_that_are_no_utf_8_are_told(folder):
    (folder / os.fsdecode(b"stray\xff")).write_bytes(b"")
    result = CliRunner().invoke(app, ["verify", str(folder), "--json"])
    assert json.loads(result.stdout)["strange_files"] == ["stray\\xff"]


def test_a_path_too_long_is_refused(tmp_path):
    result = CliRunner().invoke(app, ["verify", str(tmp_path / ("a" * 300))])
    assert isinstance(result.exception, DiskInvalid)
    check_index(tmp_path / ("a" * 300))


def test_the_command(folder):
    runner = CliRunner()
    result = runner.invoke(app, ["verify", str(folder)])
    assert result.exit_code == 0
    assert f"{COUNT} blocks" in result.stdout
    # Without a terminal there is no bar, and nothing in the place of one.
    assert result.stderr == ""
    change_bytes(folder, stored(9), SLOT, lambda value: b"?" + value[1:])
    result = runner.invoke(app, ["verify", str(folder)])
    assert result.exit_code == 1
    name = block_name(stored(9)).hex()
    # The key alone, by its first digits, as elsewhere for people.
    assert f"bytes {name[16:28]}…: wrong checksum" in result.stdout
    assert name not in result.stdout
    assert "`--repair` drops it" in result.stdout
    result = runner.invoke(app, ["verify", str(folder), "--json", "--repair"])
    assert result.exit_code == 1
    told = json.loads(result.stdout)
    assert told["damages"] == {"bytes": 1}
    assert told["repaired"]
    assert told["listed"][0]["what"] == name
    assert runner.invoke(app, ["verify", str(folder)]).exit_code == 0
    (folder / "data.mdb").unlink()
    (folder / "kvstore.lock").unlink()
    refused = runner.invoke(app, ["verify", str(folder)]).exception
    assert isinstance(refused, DiskInvalid)
    # This command has a PATH, and no --disk.
    assert str(refused).startswith(f"PATH = {folder}: not kvstore's")
