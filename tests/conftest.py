"""How the property tests run everywhere: without deadlines, as a busy machine isn't a fault of the code."""

from hypothesis import settings

settings.register_profile("project", deadline=None)
settings.load_profile("project")
