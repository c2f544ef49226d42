# files named from the descriptor of their folder: unlink, rename, open, mkdir
import os

folder = os.open("ck", os.O_RDONLY)
os.unlink("optimizer.pt", dir_fd=folder)
os.rename("log.txt", "old.log", src_dir_fd=folder, dst_dir_fd=folder)
descriptor = os.open("best.json", os.O_WRONLY | os.O_TRUNC, dir_fd=folder)
os.write(descriptor, b"{}")
os.close(descriptor)
os.mkdir("made", dir_fd=folder)
os.close(folder)

assert not os.path.exists("ck/optimizer.pt")
assert not os.path.exists("ck/log.txt")
assert os.path.getsize("ck/best.json") == 2
assert os.path.isdir("ck/made")
print("DONE")
