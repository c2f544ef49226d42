"""Imported by `manners.py` as a module beside it."""

ANSWER = 42
