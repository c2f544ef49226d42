"""A script with the habits of real ones: it asks, draws bars, changes folder, starts things."""

import json
import os
import subprocess
import sys
import tempfile
import threading

import neighbour
import torch

print("neighbour", neighbour.ANSWER)
print("arguments", json.dumps(sys.argv[1:]))
print("launcher", sorted(set(os.environ) & {"RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR"}))
try:
    input("really? ")
except EOFError:
    print("nobody answers")
os.chdir(tempfile.mkdtemp())
for i in range(200):
    sys.stderr.write(f"\r{i + 1}/200 batches")
sys.stderr.write("\n")
sys.stdout.buffer.write(b"bytes \xff\xfe\x00\x07 end\n")
print("long", "x" * 50_000)
subprocess.run([sys.executable, "-c", "print('a child')"], check=True)
subprocess.Popen(["sleep", "3600"])  # holds on to the output, and is forgotten
tensors = []
thread = threading.Thread(target=lambda: tensors.append(torch.zeros(1 << 20, device="cuda")))
thread.start()
thread.join()
print("thread", tuple(tensors[0].shape))
