"""Devices by name, and commands that are asked for one that can't be had."""

import json
import sys

import pytest
import torch
import typer

import engine.worker
from engine.device import CpuDevice, DeviceRefused
from engine.devices import gpu_uuid, open_device
from engine.server.command import app
from kvstore.cli.demo import demo


@pytest.fixture
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)


def test_the_cpu_is_always_there_and_has_no_name_at_the_service():
    assert isinstance(open_device("cpu"), CpuDevice)
    assert gpu_uuid("cpu") == ""


@pytest.mark.parametrize("name", ["gpu", "cuda:", "cuda:x", "cuda:-1", "CUDA", ""])
def test_a_device_that_is_none_is_refused(name):
    with pytest.raises(DeviceRefused, match="no such device; remedy: cpu, cuda or cuda:N"):
        open_device(name)


def test_without_a_gpu_it_says_why_and_what_to_do(no_gpu):
    with pytest.raises(DeviceRefused, match=r"--device cuda:1: .*remedy: --device cpu"):
        open_device("cuda:1")


@pytest.mark.parametrize(("uuid", "named"), [("abc", "GPU-abc"), ("GPU-abc", "GPU-abc")])
def test_a_gpu_is_named_as_the_service_names_it(monkeypatch, uuid, named):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    properties = type("Properties", (), {"uuid": uuid})
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda number: properties)
    assert gpu_uuid("cuda") == named
    with pytest.raises(DeviceRefused, match=r"torch sees 2 GPU\(s\); remedy: cuda:0 to cuda:1"):
        gpu_uuid("cuda:2")


def test_a_worker_says_it_in_its_last_line(no_gpu, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["worker", "--model", "tiny", "--device", "cuda", "--plain"])
    assert engine.worker.main() == 1
    [line] = capsys.readouterr().out.splitlines()
    told = json.loads(line)
    assert told["event"] == "error"
    assert "DeviceRefused: --device cuda: " in told["reason"]


def test_the_server_refuses_to_start(no_gpu, capsys):
    with pytest.raises(SystemExit) as caught:
        app(["serve", "--model", "tiny", "--device", "cuda"])
    assert caught.value.code == 2
    assert "kvstore-engine: --device cuda: " in capsys.readouterr().err


def test_the_demo_refuses_to_begin(no_gpu, capsys):
    with pytest.raises(typer.Exit) as caught:
        demo(as_json=False, model="tiny", device="cuda", keep=None)
    assert caught.value.exit_code == 2
    assert "kvstore demo: --device cuda: " in capsys.readouterr().err
