"""Readers of traces: what stands in a line, and what is said of a line that is wrong."""

import json

import pytest

from kvstore.core.errors import TraceInvalid
from kvstore.planner import lines
from kvstore.planner.requests import Request
from kvstore.planner.traces import open_trace
from tests.planner.shared_data import find_trace

MOONCAKE = {"timestamp": 1500, "input_length": 1025, "output_length": 5, "hash_ids": [7, 8, 9]}
TURN = {"sess": 3, "turn": 1, "ts": 2.5, "kind": "user", "in": 33, "out": 2, "hash_ids": [4, 5, 6]}
PLAIN = {"time": 0.25, "input": 33, "output": 40, "blocks": [1, 2, 3], "answer": [10, 11], "session": "a"}
PLAIN_HEADING = {"kvstore_trace": 1, "block_tokens": 16}


def write(tmp_path, *records, name="trace.jsonl"):
    path = tmp_path / name
    path.write_text("\n".join(each if isinstance(each, str) else json.dumps(each) for each in records))
    return path


def refused(path, **given) -> str:
    with pytest.raises(TraceInvalid) as caught:
        list(open_trace(path, **given).requests())
    return str(caught.value)


# ------------------------------------------------------------------------------- what is read


def test_mooncake(tmp_path):
    trace = open_trace(write(tmp_path, MOONCAKE))
    assert (trace.name, trace.format, trace.block_tokens) == ("trace", "mooncake", 512)
    expected = Request(time=1.5, input_tokens=1025, output_tokens=5, block_ids=(7, 8, 9))
    assert list(trace.requests()) == [expected]
    # Again from the beginning.
    assert list(trace.requests()) == [expected]


def test_mooncakes_blocks_may_have_another_size(tmp_path):
    path = write(tmp_path, {**MOONCAKE, "input_length": 48})
    assert open_trace(path, block_tokens=16).block_tokens == 16
    assert len(list(open_trace(path, block_tokens=16).requests())) == 1


def test_turns_of_sessions(tmp_path):
    trace = open_trace(write(tmp_path, {"block_size": 16}, TURN, "", {**TURN, "sess": "x"}))
    assert (trace.format, trace.block_tokens) == ("turns", 16)
    first, second = trace.requests()
    assert first == Request(
        time=2.5,
        input_tokens=33,
        output_tokens=2,
        block_ids=(4, 5, 6),
        session="3",
        turn=1,
        kind="user",
    )
    assert second.session == "x"


def test_the_plain_format(tmp_path):
    trace = open_trace(write(tmp_path, PLAIN_HEADING, PLAIN))
    (request,) = trace.requests()
    assert (request.time, request.answer_ids, request.session) == (0.25, (10, 11), "a")
    # 72 of 73 tokens have KV: four full blocks, two of them the answer's; five are taken.
    assert request.full_blocks(16) == 2
    assert request.answered_blocks(16) == 4
    assert request.all_blocks(16) == 5


def test_a_compressed_file(tmp_path):
    zstandard = pytest.importorskip("zstandard", reason="the extra `traces` is not installed")
    path = tmp_path / "some.jsonl.zst"
    # Two frames, and a line that goes over their border.
    whole = "\n".join(json.dumps(MOONCAKE) for _ in range(1000)).encode()
    path.write_bytes(zstandard.compress(whole[:5000]) + zstandard.compress(whole[5000:]))
    trace = open_trace(path)
    assert trace.name == "some"
    assert len(list(trace.requests())) == 1000
    path.write_bytes(zstandard.compress(whole)[:-5])
    assert "can't be decompressed: the file ends in the middle of a frame" in refused(path)
    path.write_bytes(whole)
    assert "line 1 can't be decompressed" in refused(path)


def test_a_compressed_file_without_the_package(tmp_path, monkeypatch):
    monkeypatch.setattr(lines, "ZSTD_ERRORS", ())
    text = refused(write(tmp_path, MOONCAKE, name="trace.jsonl.zst"))
    assert "needs the package zstandard" in text
    assert "pip install 'kvstore[traces]'" in text


# ------------------------------------------------------------------------------ what is refused


@pytest.mark.parametrize(
    ("record", "words"),
    [
        ({**MOONCAKE, "hash_ids": [7, 8]}, "hash_ids = 2 ids: FILE, line 2: a prompt of 1025 tokens takes 3"),
        (
            {**MOONCAKE, "input_length": 1},
            "hash_ids = 3 ids: FILE, line 2: a prompt of 1 token takes 1 block of 512 tokens",
        ),
        ({**MOONCAKE, "hash_ids": [7, -8, 9]}, "hash_ids[1] = -8: FILE, line 2: Expected `int` >= 0"),
        (
            {**MOONCAKE, "input_length": "much"},
            "input_length = 'much': FILE, line 2: Expected `int`, got `str`",
        ),
        ({**MOONCAKE, "input_length": 0}, "input_length = 0: FILE, line 2: Expected `int` >= 1"),
        ({**MOONCAKE, "output_length": 1 << 30}, "output_length = 1073741824: FILE, line 2"),
        ({**MOONCAKE, "timestamp": -1}, "timestamp = -1: FILE, line 2"),
        (
            # Mooncake's times are in milliseconds; these are nanoseconds.
            {**MOONCAKE, "timestamp": 1.7e18},
            "timestamp = 1.7e+15 s: FILE, line 2: more than a hundred years from the first line's 1.5 s",
        ),
        ({"timestamp": 1}, "input_length = '': FILE, line 2: Object missing required field"),
        ("[1, 2]", "line = [1, 2]: FILE, line 2: Expected `object`, got `array`"),
        ('{"timestamp": 1', 'line = {"timestamp": 1: FILE, line 2: Input data was truncated'),
        ("\x00", "FILE, line 2: JSON is malformed"),
        ('{"timestamp": 1e999}', 'timestamp = {"timestamp": 1e999}: FILE, line 2: Number out of range'),
        ("[" * 9_999, "line = " + "[" * 60 + "…: FILE, line 2: Expected `object`, got `array`"),
        ('{"a":' * 9_999, "FILE, line 2: maximum recursion depth exceeded"),
    ],
)
def test_a_wrong_line_is_named(tmp_path, record, words):
    path = write(tmp_path, MOONCAKE, record)
    text = refused(path)
    assert words.replace("FILE", str(path)) in text
    # A remedy stands in brackets at the end.
    assert text.endswith(")")


def test_what_was_right_before_it_is_read(tmp_path):
    requests = open_trace(write(tmp_path, MOONCAKE, "nonsense")).requests()
    assert next(requests).time == 1.5
    with pytest.raises(TraceInvalid):
        next(requests)


@pytest.mark.parametrize(
    ("records", "words"),
    [
        ([{**PLAIN_HEADING, "kvstore_trace": 2}, PLAIN], "kvstore_trace = 2"),
        ([{**PLAIN_HEADING, "more": 1}, PLAIN], "more = '': FILE, line 1: Object contains unknown field"),
        (
            [PLAIN_HEADING, {**PLAIN, "sesion": "a"}],
            "sesion = '': FILE, line 2: Object contains unknown field",
        ),
        ([PLAIN_HEADING, {**PLAIN, "answer": [1, 2, 3]}], "answer = 3 ids: FILE, line 2: the answer fills 2"),
        ([{"block_size": 0}, TURN], "block_size = 0"),
        ([{"some": 1}], "fields = some: FILE, line 1: not the first line of a trace known here"),
        ([TURN], "fields = sess, turn, ts, kind, in, out, hash_ids"),
        (['{"a":' * 9_999], "FILE, line 1: maximum recursion depth exceeded"),
        (['{"timestamp": 1e999}'], 'line = {"timestamp": 1e999}: FILE, line 1: Number out of range'),
        (
            [PLAIN_HEADING, {**PLAIN, "session": "ä" * 129}],
            "session = " + "ä" * 60 + "…: FILE, line 2: 258 bytes (name sessions in at most 256 bytes)",
        ),
        ([{"block_size": 16}, {**TURN, "sess": "x" * 257}], "x…: FILE, line 2: 257 bytes"),
        ([""], "there is nothing in it"),
    ],
)
def test_a_wrong_heading_or_field(tmp_path, records, words):
    path = write(tmp_path, *records)
    assert words.replace("FILE", str(path)) in refused(path)


def test_a_size_that_the_trace_contradicts(tmp_path):
    text = refused(write(tmp_path, {"block_size": 16}, TURN), block_tokens=512)
    assert "block_size = 16" in text
    assert "--block-tokens 512" in text


def test_a_file_that_is_not_there(tmp_path):
    assert "No such file" in refused(tmp_path / "none.jsonl")
    assert "Is a directory" in refused(tmp_path)


def test_a_line_without_an_end(tmp_path, monkeypatch):
    monkeypatch.setattr(lines, "LINE_BYTES_MAX", 1 << 20)
    path = write(tmp_path, MOONCAKE, "1" * (2 << 20))
    assert "line 2 is longer than 1 MiB" in refused(path)


# ------------------------------------------------------------------------- on traces of others


@pytest.mark.parametrize(
    ("name", "format", "requests", "blocks"),
    [
        ("mooncake_conversation.jsonl.zst", "mooncake", 12_031, 288_500),
        ("tau_airline_smollm2_b16.jsonl.zst", "turns", 2_454, 501_548),
    ],
)
def test_a_real_trace(name, format, requests, blocks):
    pytest.importorskip("zstandard", reason="the extra `traces` is not installed")
    trace = open_trace(find_trace(name))
    counts = [len(request.block_ids) for request in trace.requests()]
    assert (trace.format, len(counts), sum(counts)) == (format, requests, blocks)
