"""Playing: groups of lanes, the collector that plays orders, and whole episodes that judge an agent.

Knows nothing of where it runs and never imports torch for a dense network.
"""
