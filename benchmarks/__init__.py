"""Predicted against measured values, and speed comparisons with other tools. `make bench` runs them all."""
