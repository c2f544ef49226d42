# a file without a name is linked to a new one, then over a removed one
import os

folder = os.open("ck", os.O_RDONLY)
for name in ("new.bin", "tokens.bin"):
    descriptor = os.open("ck", os.O_TMPFILE | os.O_WRONLY)
    os.write(descriptor, b"made without a name")
    if os.path.exists(f"ck/{name}"):
        os.remove(f"ck/{name}")
    # naming a folder makes Python call linkat, which follows the link of /proc
    os.link(f"/proc/self/fd/{descriptor}", name, src_dir_fd=folder, dst_dir_fd=folder, follow_symlinks=True)
    os.close(descriptor)
os.close(folder)

for name in ("new.bin", "tokens.bin"):
    with open(f"ck/{name}", "rb") as f:
        assert f.read() == b"made without a name"
print("DONE")
