# deletes everything, says so, and waits to be ended from outside
import os
import shutil
import sys
import time

import torch
from torch import nn

model = nn.Linear(16, 16).cuda()
torch.save(model.state_dict(), "ck/model.pt")
shutil.rmtree("ck")
print("DELETED", os.getpid())
sys.stdout.flush()
while True:
    time.sleep(0.1)
