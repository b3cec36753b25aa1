"""Networks: what makes a description from settings, and the interpreters that act (NumPy) and learn (torch).

Knows nothing of algorithms; torch is imported by `torch_net.py` and `torch_layers.py` alone.
"""
