"""The same words as a library. ``import paceline as pl`` finds them; see ``paceline/__init__.py``."""
