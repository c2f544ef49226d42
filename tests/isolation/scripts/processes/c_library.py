# calls of the C library that Python knows nothing of: unlink, rename, open, ftruncate
import ctypes
import os

libc = ctypes.CDLL(None, use_errno=True)


def call(name, *args):
    answer = getattr(libc, name)(*args)
    if answer < 0:
        raise OSError(ctypes.get_errno(), f"{name}: {os.strerror(ctypes.get_errno())}")
    return answer


call("unlink", b"ck/optimizer.pt")
call("rename", b"ck/log.txt", b"ck/best.json")
call("truncate", b"ck/tokens.bin", ctypes.c_long(10))
descriptor = call("open", b"ck/metrics.csv", os.O_WRONLY | os.O_TRUNC)
call("write", descriptor, b"step", ctypes.c_size_t(4))
os.close(descriptor)

assert not os.path.exists("ck/optimizer.pt")
assert not os.path.exists("ck/log.txt")
assert [os.path.getsize(f"ck/{name}") for name in ("best.json", "tokens.bin", "metrics.csv")] == [25, 10, 4]
print("DONE")
