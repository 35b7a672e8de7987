"""Generates the packages `v1` out of protos/; with --check, tells whether the committed code is up to date.

Covers the Python modules, the gRPC stubs of what has services, and the types of both. Not the packages'
`__init__.py`, which are written by hand. The bytes depend on the versions of grpcio-tools and mypy-protobuf:
see constraints.txt.
"""

import argparse
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PROTOS = ROOT / "protos"
SERVICE = re.compile(r"^service ", re.MULTILINE)


def main() -> int:
    parser = argparse.ArgumentParser(description="Generate the gRPC code.")
    parser.add_argument("--check", action="store_true", help="change nothing; exit 1 if it is out of date")
    check_only: bool = parser.parse_args().check
    with tempfile.TemporaryDirectory() as folder:
        generate(Path(folder))
        wanted = find_generated(Path(folder))
    found = find_generated(ROOT)
    stale = sorted(name for name in wanted.keys() | found.keys() if wanted.get(name) != found.get(name))
    if check_only:
        for name in stale:
            print(f"{name} is not what protos/ gives: run `make protos`", file=sys.stderr)
        return 1 if stale else 0
    for name in stale:
        write(ROOT / name, wanted.get(name))
        print(f"{'wrote' if name in wanted else 'removed'} {name}")
    return 0


def generate(target: Path) -> None:
    protos = sorted(PROTOS.rglob("*.proto"))
    _run_protoc(protos, f"--python_out={target}", f"--mypy_out=quiet:{target}")
    services = [path for path in protos if SERVICE.search(path.read_text())]
    _run_protoc(services, f"--grpc_python_out={target}", f"--mypy_grpc_out=quiet:{target}")


def _run_protoc(protos: list[Path], *outputs: str) -> None:
    plugin = Path(sys.executable).parent / "protoc-gen-mypy"
    command = [
        *(sys.executable, "-m", "grpc_tools.protoc"),
        *(f"--plugin=protoc-gen-mypy={plugin}", f"--plugin=protoc-gen-mypy_grpc={plugin}_grpc"),
        f"--proto_path={PROTOS}",
        *outputs,
        *map(str, protos),
    ]
    subprocess.run(command, check=True)


def find_generated(root: Path) -> dict[str, bytes]:
    paths = (root / "kvstore").rglob("v1/*_pb2*.py*")
    return {str(path.relative_to(root)): path.read_bytes() for path in paths}


def write(path: Path, content: bytes | None) -> None:
    """None: no proto gives this file any more."""
    if content is None:
        path.unlink()
    else:
        path.write_bytes(content)


if __name__ == "__main__":
    sys.exit(main())
