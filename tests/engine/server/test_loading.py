"""How a model is loaded: what is left of it, beside the model."""

import subprocess
import sys

# What the kernel calls tasks are threads, also those that Python knows nothing of.
THREADS_LEFT = """
import os, torch
from engine.server.loading import load

torch.set_num_threads(2)
before = len(os.listdir("/proc/self/task"))
loaded = load("smollm2", "bf16")
print(len(os.listdir("/proc/self/task")) - before, loaded.model.weights.dtype)
"""


def test_loading_leaves_no_thread_behind():
    told = subprocess.run([sys.executable, "-c", THREADS_LEFT], capture_output=True, text=True, check=True)
    assert told.stdout.split() == ["0", "torch.bfloat16"]
