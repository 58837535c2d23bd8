"""Published models: a ``config.json`` becomes widths that are planned, and trained where our decoder computes them.

``families.toml`` says of each family what its config leaves out; ``switches`` reads the keys that mean the same in all
families, ``odd`` those of one. A family that is not in the table is read by the standard keys, and that is said.
"""
