"""Models as if one device existed; ``cuts.py`` beside them says how each weight may be cut."""
