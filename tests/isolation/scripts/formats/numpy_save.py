# np.save over an existing array
import numpy as np

np.save("ck/array.npy", np.zeros((100, 3)))

assert np.load("ck/array.npy").shape == (100, 3)
print("DONE")
