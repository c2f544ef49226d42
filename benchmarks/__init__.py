"""Predicted against measured, and races against peers. `make bench` runs them all."""
