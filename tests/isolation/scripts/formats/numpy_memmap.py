# an array of tokens is changed in place through a map
import numpy as np

tokens = np.memmap("ck/tokens.bin", dtype=np.uint8, mode="r+")
tokens[:1000] = 7
tokens.flush()
del tokens

assert np.fromfile("ck/tokens.bin", np.uint8)[:1000].tolist() == [7] * 1000
print("DONE")
