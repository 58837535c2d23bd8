"""Text to rows of tokens: sources, tokenizer, prepared shards, packing, order, batches. No torch, no
rank.

Flow: :mod:`sources` finds files and :mod:`documents` reads them, :mod:`scan` hashes each document and
decides the hold-out, :mod:`tokens` makes the tokenizer, :mod:`prepare` writes memory-mapped shards,
:mod:`packing` cuts rows out of them, :mod:`order` says which row comes at which position, :mod:`batches`
which rank gets which row of which step, and :mod:`baseline` is the n-gram model that a trained model has
to beat.
"""
