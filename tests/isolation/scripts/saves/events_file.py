# a file of events as TensorBoard's writer makes it: a new one, and records added to an old one
import glob
import os
import struct
import zlib


def add(path, payload):
    head = struct.pack("<Q", len(payload))
    with open(path, "ab") as f:
        f.write(head + struct.pack("<I", zlib.crc32(head)) + payload + struct.pack("<I", zlib.crc32(payload)))
        f.flush()
        os.fsync(f.fileno())


old = glob.glob("ck/events.out.tfevents.*")[0]
add(old, b"loss" * 6)
add("ck/events.out.tfevents.1800000000.host.2.0", b"loss" * 6)

assert os.path.getsize(old) == 80 + 40
assert len(glob.glob("ck/events.out.tfevents.*")) == 2
print("DONE")
