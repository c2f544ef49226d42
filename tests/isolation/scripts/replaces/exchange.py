# two files change places in one call, renameat2 with RENAME_EXCHANGE
import ctypes
import os

libc = ctypes.CDLL(None, use_errno=True)
if libc.renameat2(-100, b"ck/best.json", -100, b"ck/log.txt", 2) < 0:
    raise OSError(ctypes.get_errno(), f"renameat2: {os.strerror(ctypes.get_errno())}")

assert [os.path.getsize(path) for path in ("ck/best.json", "ck/log.txt")] == [25, 26]
print("DONE")
