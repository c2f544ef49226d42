# np.savez over an existing archive
import numpy as np

np.savez("ck/arrays.npz", a=np.zeros(10), b=np.ones(20))

assert np.load("ck/arrays.npz")["b"].sum() == 20
print("DONE")
