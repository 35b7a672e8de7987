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


def run_example(service: Service) -> str:
    [code] = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    code = code.replace("Client()", f'Client("unix:{service.socket}")')
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert run.returncode == 0, run.stderr
    return run.stdout


def test_the_example_finds_its_prompt_again_and_after_a_restart_too(service: Service) -> None:
    assert run_example(service) == "0 tokens were cached\n"
    assert run_example(service) == "96 tokens were cached\n"
    service.end()
    service.start()
    assert run_example(service) == "96 tokens were cached\n"
