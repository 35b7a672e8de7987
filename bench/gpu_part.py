"""Parts of the GPU check in this process: `python -m bench.gpu_part NAME ...`; rows as JSON, one a line."""

import argparse
import json
from collections.abc import Callable, Iterator
from dataclasses import asdict

from bench import (
    gpu_attention,
    gpu_decode,
    gpu_demo,
    gpu_kernels,
    gpu_roundtrip,
    gpu_sharing,
    gpu_swap,
)
from bench.gpu_place import Place, find_place
from bench.report import Row

__all__ = ["MEASURES"]

MEASURES: dict[str, Callable[[Place, bool], Iterator[Row]]] = {
    "sharing": gpu_sharing.measure,
    "kernels": gpu_kernels.measure,
    "roundtrip": gpu_roundtrip.measure,
    "swap": gpu_swap.measure,
    "attention": gpu_attention.measure,
    "decode": gpu_decode.measure,
    "demo": gpu_demo.measure,
}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.gpu_part", description=__doc__)
    parser.add_argument("names", choices=MEASURES, nargs="+")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="cpu: for the tests")
    arguments = parser.parse_args()
    place = find_place(arguments.device)
    for name in arguments.names:
        for row in MEASURES[name](place, arguments.quick):
            print(json.dumps(asdict(row)), flush=True)


if __name__ == "__main__":
    main()
