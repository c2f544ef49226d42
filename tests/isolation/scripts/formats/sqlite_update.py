# a table of runs gains a row and loses one
import sqlite3

connection = sqlite3.connect("ck/runs.sqlite")
connection.execute("insert into runs values (101, 1.4)")
connection.execute("delete from runs where step = 99")
connection.commit()

assert connection.execute("select step from runs order by step").fetchall() == [(100,), (101,)]
connection.close()
print("DONE")
