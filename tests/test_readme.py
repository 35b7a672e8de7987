"""What the README shows works as it stands there."""

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.server.harness import Service

README = Path(__file__).parent.parent / "README.md"


@pytest.fixture
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    folder = tmp_path_factory.mktemp("kv")
    disk = ("--disk", str(folder / "disk"), "--disk-bytes", "64MiB")
    service = Service(folder, *disk, gpu_frames=512, cpu_frames=512)
    yield service.start()
    service.end()


def run_example(service: Service, *changes: tuple[str, str]) -> str:
    [code] = [
        each for each in re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL) if "Layout" in each
    ]
    code = code.replace("Client()", f'Client("{service.socket}")')
    for before, after in changes:
        assert before in code
        code = code.replace(before, after)
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert run.returncode == 0, run.stderr
    return run.stdout


def test_the_example_finds_its_prompt_again_and_after_a_restart_too(service: Service) -> None:
    assert run_example(service) == "0 tokens were cached\n"
    assert run_example(service) == "96 tokens were cached\n"
    service.end()
    service.start()
    assert run_example(service) == "96 tokens were cached\n"


def test_the_example_waits_for_what_comes_from_disk(service: Service) -> None:
    """Large blocks take their time: nothing is computed or committed before they have come."""
    large = ("16 * 1024", "256 * 1024")
    service.end()
    service = Service(
        service.folder, "--disk", str(service.folder / "large"), "--disk-bytes", "128MiB",
        gpu_frames=32 * 200, cpu_frames=32 * 200,
    ).start()  # fmt: skip
    try:
        run_example(service, large, ("range(100)", "range(1604)"))
        service.end()
        service.start()
        cached = run_example(service, large, ("range(100)", "range(1700)"))
    finally:
        service.end()
    assert cached == "1600 tokens were cached\n"
