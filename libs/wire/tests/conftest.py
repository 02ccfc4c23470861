"""Generated tests are judged by what they find, not by how busy the machine is."""

from hypothesis import settings

settings.register_profile("busy machine", deadline=None)
settings.load_profile("busy machine")
