# a map for a hundred billion tokens, of which almost none is written
import os

import numpy as np

tokens = np.memmap("ck/tokens.bin", dtype=np.uint16, mode="w+", shape=(100_000_000_000,))
tokens[-1] = 7
tokens.flush()
del tokens

assert os.path.getsize("ck/tokens.bin") == 200_000_000_000
print("DONE")
