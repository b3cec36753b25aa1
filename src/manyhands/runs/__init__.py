"""A run from its settings to its end: the plan, the wiring, its directory, metrics, views, plots, videos.

`training.py` is the one path into training, from a shell, from Python, and from a child.
"""
