"""`python -m engine.server.with_parent MODULE …`: the module as a program that stops when its parent is gone.

Its stdin is a pipe whose other end the parent alone has, and never writes to. However the parent ends, by
SIGKILL too, the pipe ends then, and the program gets SIGTERM. Tests: tests/engine/server/test_own_service.py.
"""

import os
import runpy
import signal
import sys
import threading


def main() -> None:
    threading.Thread(target=_watch, name="parent", daemon=True).start()
    del sys.argv[0]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)


def _watch() -> None:
    while os.read(0, 1):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    main()
