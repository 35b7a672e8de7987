"""Generates kvstore/v1 out of protos/; with --check, tells whether the committed code is up to date.

Covers the Python modules, the gRPC stubs and the types of both. Not the package's `__init__.py`, which is
written by hand. The bytes depend on the versions of grpcio-tools and mypy-protobuf: see constraints.txt.
"""

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PROTOS = ROOT / "protos"
PACKAGE = Path("kvstore/v1")


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
    plugin = Path(sys.executable).parent / "protoc-gen-mypy"
    command = [
        *(sys.executable, "-m", "grpc_tools.protoc"),
        *(f"--plugin=protoc-gen-mypy={plugin}", f"--plugin=protoc-gen-mypy_grpc={plugin}_grpc"),
        f"--proto_path={PROTOS}",
        *(f"--{kind}_out={target}" for kind in ("python", "grpc_python")),
        *(f"--{kind}_out=quiet:{target}" for kind in ("mypy", "mypy_grpc")),
        *sorted(str(path) for path in PROTOS.rglob("*.proto")),
    ]
    subprocess.run(command, check=True)


def find_generated(root: Path) -> dict[str, bytes]:
    paths = (root / PACKAGE).glob("*_pb2*.py*")
    return {str(path.relative_to(root)): path.read_bytes() for path in paths}


def write(path: Path, content: bytes | None) -> None:
    """None: no proto gives this file any more."""
    if content is None:
        path.unlink()
    else:
        path.write_bytes(content)


if __name__ == "__main__":
    sys.exit(main())
