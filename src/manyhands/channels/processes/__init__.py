"""The channel to worker processes of this machine, with arrays in shared memory."""
