# files of gzip, bz2 and lzma, and text written through codecs
import bz2
import codecs
import gzip
import lzma

for module, path in ((gzip, "ck/log.txt"), (bz2, "ck/metrics.csv"), (lzma, "ck/state.pickle")):
    with module.open(path, "wb") as f:
        f.write(b"loss" * 100)
with codecs.open("ck/best.json", "w", encoding="utf-16") as f:
    f.write("{}")

for module, path in ((gzip, "ck/log.txt"), (bz2, "ck/metrics.csv"), (lzma, "ck/state.pickle")):
    with module.open(path, "rb") as f:
        assert f.read() == b"loss" * 100
with codecs.open("ck/best.json", encoding="utf-16") as f:
    assert f.read() == "{}"
print("DONE")
