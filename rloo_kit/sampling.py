"""Draw tokens from a vocabulary of 151,936 without paying for a random number per entry.

On a CPU ``torch.multinomial`` makes one exponential variate for each entry of each row, which at Qwen3's
vocabulary is most of a decoding step.  An inverse-CDF draw needs one uniform number a row and follows the
same distribution.  It goes in through ``generate``'s public ``logits_processor``.  On a GPU multinomial is
cheap beside the model, and nothing is changed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Draw:
    """How a token is drawn; names and meaning as in TRL's config and transformers' GenerationConfig.

    Attributes:
        temperature: divides the logits; above 0.
        top_p, top_k, min_p: restrict the draw; 1.0, 0 and None restrict nothing.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float | None = None

    def generate_options(self, device: torch.device) -> dict[str, Any]:
        """Keywords for ``model.generate`` that sample this way on this device."""
        if device.type != "cpu":
            return {
                "do_sample": True,
                "temperature": self.temperature,
                "top_p": self.top_p,
                "top_k": self.top_k,
                "min_p": self.min_p,
            }
        # The processor does the drawing, so generate is told to take the largest score.
        greedy = {"do_sample": False, "temperature": None, "top_p": None, "top_k": None, "min_p": None}
        return {**greedy, "logits_processor": [*self._warpers(), draw_by_inverse_cdf]}

    def _warpers(self) -> list[Any]:
        """transformers' own, in the order in which its sampling applies them."""
        from transformers import generation

        warpers: list[Any] = []
        if self.temperature != 1.0:
            warpers.append(generation.TemperatureLogitsWarper(self.temperature))
        if self.top_k:
            warpers.append(generation.TopKLogitsWarper(self.top_k))
        if self.top_p < 1.0:
            warpers.append(generation.TopPLogitsWarper(self.top_p))
        if self.min_p is not None:
            warpers.append(generation.MinPLogitsWarper(self.min_p))
        return warpers


def draw_by_inverse_cdf(input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
    """A logits processor, the last one: give the drawn token of each row the largest score.

    The index drawn is the first whose cumulated probability exceeds a uniform number, so an entry of
    probability 0 is never drawn.

    Args:
        input_ids: (rows, length), unused.
        scores: (rows, vocabulary) logits; changed in place.
    """
    import torch

    cumulated = torch.softmax(scores.float(), dim=-1).cumsum(dim=-1)
    total = cumulated[:, -1:]
    uniform = torch.rand(total.shape, device=scores.device) * total
    below_total = torch.minimum(uniform, torch.nextafter(total, torch.zeros_like(total)))
    drawn = torch.searchsorted(cumulated, below_total, right=True)
    return scores.scatter_(1, drawn, torch.inf)
