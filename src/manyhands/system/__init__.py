"""What the operating system offers: processes, signals, memory, locks, secret and temporary files.

Knows nothing of learning; whatever differs between systems belongs here.
"""
