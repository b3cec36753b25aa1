"""Property tests draw the same examples every time: a failure in CI is a failure here."""

from hypothesis import settings

settings.register_profile("unit", deadline=None, derandomize=True, max_examples=60)
settings.load_profile("unit")
