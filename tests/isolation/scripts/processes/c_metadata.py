# calls of the C library that change no bytes: chmod, utimes
import ctypes
import os

libc = ctypes.CDLL(None, use_errno=True)
for name, argument in (("chmod", 0o600), ("utimes", None)):
    if getattr(libc, name)(b"ck/model.pt", argument) < 0:
        raise OSError(ctypes.get_errno(), f"{name}: {os.strerror(ctypes.get_errno())}")

assert os.stat("ck/model.pt").st_mode & 0o777 == 0o600
assert os.stat("ck/model.pt").st_mtime > 1_700_100_000
print("DONE")
