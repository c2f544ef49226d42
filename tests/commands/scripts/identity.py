"""Prints what a process of its own would have for itself."""

import json
import os
import random
import sys

import numpy

print(
    "identity",
    json.dumps(
        {
            "leads": os.getsid(0) == os.getpgrp() == os.getpid(),
            "random": random.random(),
            "numpy": float(numpy.random.rand()),
            "main": sys.modules["__main__"].__name__ == "__main__" and __name__ == "__main__",
            "file": os.path.basename(__file__),
            "argv": sys.argv[1:],
            "unbuffered": sys.stdout.write_through,
            "stdin": sys.stdin.read(),
            "path": sys.path[0] == os.path.dirname(os.path.abspath(__file__)),
        }
    ),
)
