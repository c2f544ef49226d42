# a shelf gains a key
import dbm.dumb
import shelve

with shelve.Shelf(dbm.dumb.open("ck/notes", "w")) as shelf:
    shelf["newest"] = {"step": 2}

with shelve.Shelf(dbm.dumb.open("ck/notes", "r")) as shelf:
    assert shelf["newest"] == {"step": 2}
print("DONE")
