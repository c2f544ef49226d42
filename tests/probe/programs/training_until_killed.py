"""A training that kills itself in the middle of its second step: DUMP_PATH [LEVEL]."""

import os
import signal
import sys

import torch
from torch import nn

from windtunnel.pytorch import PrecisionDebugger

torch.manual_seed(0)
net = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 1))
debugger = PrecisionDebugger(dump_path=sys.argv[1], level=sys.argv[2], task="tensor")
for step in range(2):
    debugger.start(net)
    x = torch.linspace(-1, 1, 12).view(3, 4)
    if sys.argv[2] == "debug":
        debugger.save(x, "input")
    loss = net(x).sum()
    if step == 1 and len(sys.argv) == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    loss.backward()
    debugger.stop()
    debugger.step()
