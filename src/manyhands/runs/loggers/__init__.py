"""Destinations of a run's numbers beside `metrics.jsonl`: a small file for each, all behind `Logger`.

`base.py` has the protocol and the names of the numbers; `choose.py` finds a logger by what a user typed.
"""
