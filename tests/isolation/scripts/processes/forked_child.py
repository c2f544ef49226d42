# a forked process writes and deletes, and leaves without cleaning up
import os

child = os.fork()
if child == 0:
    os.remove("ck/optimizer.pt")
    with open("ck/best.json", "w") as f:
        f.write("{}")
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0

assert not os.path.exists("ck/optimizer.pt")
assert os.path.getsize("ck/best.json") == 2
print("DONE")
