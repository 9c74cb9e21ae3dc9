"""What a GPU holds of weights that are cut among several."""

import pytest

from rloo_kit.memory.sharded import LARGE, QWEN3_32B, QWEN25_72B, shard

GIB = 2**30


@pytest.mark.parametrize(("checkpoint", "published"), [(QWEN3_32B, 32.8e9), (QWEN25_72B, 72.7e9)])
def test_the_shapes_have_the_published_number_of_parameters(checkpoint: object, published: float) -> None:
    assert checkpoint.parameters == pytest.approx(published, rel=2e-3)  # type: ignore[attr-defined]


@pytest.mark.parametrize("checkpoint", LARGE, ids=lambda one: one.name)
def test_shards_add_up_to_the_policy(checkpoint: object) -> None:
    alone = shard(checkpoint, 1)  # type: ignore[arg-type]
    for gpus in (2, 4, 8):
        part = shard(checkpoint, gpus)  # type: ignore[arg-type]
        assert 0 <= part.weights * gpus - alone.weights < gpus
        assert 0 <= part.trained * gpus - alone.trained < gpus
        assert (part.gathered, part.synced) == (alone.gathered, alone.synced)
        assert part.training_bytes < alone.training_bytes


def test_a_rank_16_lora_of_8b_by_hand() -> None:
    hidden, keys, ffn, layers = 4096, 1024, 12288, 36
    pairs = 2 * (hidden + hidden) + 2 * (hidden + keys) + 3 * (hidden + ffn)
    assert shard(LARGE[0], 1).trained == 16 * layers * 16 * pairs


def test_what_is_gathered_is_a_gigaword_or_the_largest_matrix() -> None:
    assert shard(QWEN25_72B, 8).gathered == 2 * max(10**9, 152064 * 8192)


def test_72b_trains_on_8_cards_of_80_gib_and_cannot_be_sent_whole_by_them() -> None:
    part = shard(QWEN25_72B, 8)
    assert part.training_bytes < 40 * GIB
    assert part.syncing_bytes > 141 * 10**9  # nor by H200s
