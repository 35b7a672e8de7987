"""The other process of `gpu_decode`: an engine that swaps one sequence out and in while it is told to.

    python -m bench.gpu_swapper ADDRESS BLOCK_BYTES BLOCKS

On standard input `go` and `stop`, a line each; each `stop` is answered by a line with the bytes moved and the
seconds that it took. At the end of the input it leaves.
"""

import sys
import threading
import time

from kvstore.client import Client, Layout, operations
from kvstore.v1 import kvstore_pb2 as pb

__all__ = ["BLOCK_TOKENS"]

BLOCK_TOKENS = 16


def main() -> None:
    address, block_bytes, blocks = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    layout = Layout(block_tokens=BLOCK_TOKENS, block_bytes=block_bytes, fingerprint=b"w" * 32)
    with Client(address, deadline_seconds=20.0) as client:
        client.attach(layout, lease_seconds=60.0)
        [result] = client.step([operations.allocate(1, blocks * BLOCK_TOKENS)]).results
        if result.allocate.outcome != pb.OUTCOME_OK:
            raise SystemExit("no frames for what is to be swapped")
        print("ready", flush=True)
        going, ended = threading.Event(), threading.Event()
        threading.Thread(target=_listen, args=(going, ended), daemon=True).start()
        while not ended.is_set():
            if not going.wait(0.05):
                # So that the lease holds and events are taken.
                client.wait_events(0.0)
                continue
            moves, began = 0, time.perf_counter()
            while going.is_set():
                _move(
                    client,
                    operations.swap_out(1, blocks * BLOCK_TOKENS, pb.SwapRequest.KEEP),
                    pb.Sequence.SWAPPED,
                )
                _move(client, operations.swap_in(1), pb.Sequence.RESIDENT)
                moves += 2
            print(moves * blocks * block_bytes, time.perf_counter() - began, flush=True)


def _listen(going: threading.Event, ended: threading.Event) -> None:
    for line in sys.stdin:
        (going.set if line.strip() == "go" else going.clear)()
    going.clear()
    ended.set()


def _move(client: Client, operation: pb.Operation, state: pb.Sequence.State.ValueType) -> None:
    client.step([operation])
    step = client.next_step - 1
    while client.tables.state(1) != state:
        client.wait_events(1.0, completed_step=step)


if __name__ == "__main__":
    main()
