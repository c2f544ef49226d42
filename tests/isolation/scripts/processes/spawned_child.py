# a process of multiprocessing, started afresh, writes and deletes
import multiprocessing
import os


def work():
    os.remove("ck/optimizer.pt")
    with open("ck/best.json", "w") as f:
        f.write("{}")


if __name__ == "__main__":
    child = multiprocessing.get_context("spawn").Process(target=work)
    child.start()
    child.join()
    assert child.exitcode == 0
    assert not os.path.exists("ck/optimizer.pt")
    assert os.path.getsize("ck/best.json") == 2
    print("DONE")
