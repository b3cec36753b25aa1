"""Settings as dataclasses with every default, where a run's settings come from, and tuned recipes.

Knows algorithms by name alone (`algorithms.py`): their own settings are in their files.
"""
