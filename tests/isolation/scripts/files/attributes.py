# owner and extended attributes: nothing a listing of names and sizes would show
import os

os.chown("ck/model.pt", os.getuid(), os.getgid())
os.setxattr("ck/optimizer.pt", "user.note", b"trained twice")

assert os.getxattr("ck/optimizer.pt", "user.note") == b"trained twice"
print("DONE")
