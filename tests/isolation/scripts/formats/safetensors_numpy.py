# safetensors.numpy.save_file, whose writer is in Rust
import numpy as np
from safetensors.numpy import load_file, save_file

save_file({"weight": np.ones((512, 1024), np.float32)}, "ck/model.safetensors")

assert load_file("ck/model.safetensors")["weight"].shape == (512, 1024)
print("DONE")
