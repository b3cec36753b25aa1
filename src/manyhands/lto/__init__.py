"""Learn to optimise: tuning laws, the true minimum to judge them by, plots.

The functions themselves are environments (`envs/lto.py`) and are played by `collect/moves.py`.
"""
