# removes the files and folders it is told, by itself and by a command
import os
import shutil
import subprocess
import sys

import torch
from torch import nn

model = nn.Linear(16, 16).cuda()
model(torch.randn(2, 16, device="cuda")).sum().backward()
for path in sys.argv[1:]:
    if os.path.isdir(path):
        shutil.rmtree(path, ignore_errors=True)
    else:
        os.remove(path)
    subprocess.run(["rm", "-rf", path], stderr=subprocess.DEVNULL)
print("DONE")
