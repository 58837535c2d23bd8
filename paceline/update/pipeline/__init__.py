"""Pipelined updates: the orders of ``plan/pipeline`` on ``torch.distributed.pipelining``.

``runtime`` is what a step calls, ``stages`` one stage as torch's runtime sees it, ``shards`` what FSDP2 does for
it, ``forward`` the evaluation.
"""
