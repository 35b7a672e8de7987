"""The real `cuda-bindings` over a libcuda of the tests' own (`libcuda.c`), in processes that find it.

What a driver and a device make of the calls only a GPU can tell; that the right calls arrive, with the right
structures, this does.
"""

import ctypes.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

from kvstore.cuda.bindings import load_driver
from kvstore.cuda.calls import LOST
from kvstore.cuda.driver import CudaUnavailable
from tests.cuda.stub import build_stub

ROOT = Path(__file__).parent.parent.parent


@pytest.fixture(scope="module")
def stub_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("stub")
    build_stub(folder)
    return folder


def run_with(folder: Path, *words: str, without: str = "") -> subprocess.CompletedProcess[str]:
    """`without`: a call that the driver does not have."""
    environment = {**os.environ, "LD_LIBRARY_PATH": str(folder), "PYTHONPATH": str(ROOT)}
    if without:
        environment["STUB_WITHOUT"] = without
    command = [sys.executable, *words]
    return subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, timeout=100)


def test_the_conformance_passes_through_the_real_bindings(stub_folder: Path) -> None:
    done = run_with(
        stub_folder,
        "-m",
        "pytest",
        "-p",
        "no:cacheprovider",
        "-q",
        "tests/cuda/test_driver.py",
        "-k",
        "TestReal",
    )
    assert done.returncode == 0, done.stdout
    assert " passed" in done.stdout
    assert "skipped" not in done.stdout


def test_the_real_service_and_a_real_client_serve_every_byte_through_the_real_bindings(
    stub_folder: Path,
) -> None:
    done = run_with(
        stub_folder, "-m", "pytest", "-p", "no:cacheprovider", "-q", "tests/cuda/test_real_service.py"
    )
    assert done.returncode == 0, done.stdout
    assert "1 passed, 1 skipped" in done.stdout


def test_names_contexts_errors_and_pythons_lock(stub_folder: Path) -> None:
    done = run_with(stub_folder, "-m", "tests.cuda.bindings_worker")
    assert done.stdout == "good\n", done.stderr


@pytest.mark.parametrize("call", ["cuInit", "cuMemcpyBatchAsync"])
def test_a_driver_that_is_older_than_a_call_says_which(stub_folder: Path, call: str) -> None:
    done = run_with(stub_folder, "-m", "tests.cuda.bindings_worker", call, without=call)
    assert done.stdout == "good\n", done.stderr


def test_a_device_that_ends_work_is_lost_and_others_are_not(stub_folder: Path) -> None:
    """Every name in the list is one that the driver has: a slip of the pen would never match."""
    names = run_with(
        stub_folder,
        "-c",
        "from cuda.bindings import driver\n"
        "from kvstore.cuda.calls import LOST\n"
        "print(sorted(LOST - set(driver.CUresult.__members__)))",
    )
    assert names.stdout == "[]\n", names.stderr
    assert "CUDA_ERROR_OUT_OF_MEMORY" not in LOST


def test_without_a_driver_it_says_so() -> None:
    pytest.importorskip("cuda.bindings")
    if ctypes.util.find_library("cuda"):
        pytest.skip("there is a driver on this machine")
    with pytest.raises(CudaUnavailable, match="no CUDA driver"):
        load_driver()


def test_without_the_package_its_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cuda.bindings.driver", None)
    with pytest.raises(CudaUnavailable, match=r"pip install 'kvstore\[cuda\]'"):
        load_driver()
