"""Parents and children: machines that train by themselves and average their weights over WebSockets.

A child is a whole run; here is only what it exchanges.
"""
