"""Text to rows of tokens: sources, tokenizer, prepared shards, packing, order, batches. No torch, no rank process.

Flow: :mod:`sources` finds documents, :mod:`scan` hashes them and decides the hold-out, :mod:`tokens` makes the
tokenizer, :mod:`prepare` writes memory-mapped shards, :mod:`packing` cuts rows out of them, :mod:`order` says which
row comes at which position, :mod:`batches` says which rank gets which row of which step, :mod:`baseline` is the
n-gram model that a trained model has to beat.
"""
