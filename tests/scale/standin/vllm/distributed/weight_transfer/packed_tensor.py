"""Sending: vLLM packs tensors into buffers, here each goes alone."""


def packed_nccl_broadcast_producer(iterator, group, src, post_iter_func) -> None:
    """Send every tensor, in order."""
    for item in iterator:
        group.broadcast(post_iter_func(item).detach().contiguous().cpu())
