"""Kernels under Triton's interpreter beside torch; prints what agreed."""

import torch
import triton
import triton.language as tl


@triton.jit
def normed(X, Y, W, n, BLOCK: tl.constexpr):
    """Rows of more elements than a block has lanes of its own: loads with a mask, a sum, a cast, an activation."""
    row, columns = tl.program_id(0), tl.arange(0, BLOCK)
    inside = columns < n
    x = tl.load(X + row * n + columns, mask=inside, other=0).to(tl.float32)
    w = tl.load(W + columns, mask=inside, other=0)
    y = (x * tl.math.rsqrt(tl.sum(x * x, axis=0) / n + 1e-6)).to(w.dtype) * w
    tl.store(Y + row * n + columns, y * tl.sigmoid(y.to(tl.float32)).to(w.dtype) - (-y), mask=inside)


@triton.jit
def alternating(Y):
    """A branch on the program's number."""
    program = tl.program_id(0)
    if program % 2 == 0:
        tl.store(Y + program, program)
    else:
        tl.store(Y + program, -program)


@triton.jit
def blocks(X, Y, HEADS: tl.constexpr, BLOCK: tl.constexpr):
    """Two axes of programs, blocks of two, a product, reductions, an atomic sum."""
    row, group = tl.program_id(0), tl.program_id(1)
    place = tl.arange(0, HEADS)[:, None] * BLOCK + tl.arange(0, BLOCK)[None, :]
    at = X + (row * tl.num_programs(1) + group) * HEADS * BLOCK + place
    x = tl.load(at)
    tl.atomic_add(Y + row, tl.sum(x))
    product = tl.dot(x, tl.trans(x))
    tl.store(at, x / tl.sum(x * x, axis=1)[:, None] + tl.max(product, axis=1)[:, None])


torch.manual_seed(0)
for dtype in (torch.float32, torch.float16, torch.bfloat16):
    x, w = torch.randn(700, 60).to(dtype), torch.randn(60).to(dtype)
    y = torch.empty_like(x)
    normed[(700,)](x, y, w, 60, 64)
    scale = (x.float().square().mean(1, keepdim=True) + 1e-6).rsqrt()
    want = (x.float() * scale).to(dtype) * w
    want = want * torch.sigmoid(want.float()).to(dtype) + want
    # One rounding of the 16-bit types, where a sum in another order falls on the other side.
    torch.testing.assert_close(y.float(), want.float(), rtol=2 * torch.finfo(dtype).eps, atol=1e-5)
    print(str(dtype).removeprefix("torch."))

found = torch.zeros(9, dtype=torch.int32)
alternating[(9,)](found)
assert found.tolist() == [n if n % 2 == 0 else -n for n in range(9)]
print("branches")

x, sums = torch.randn(5, 2, 4, 16), torch.zeros(5)
before = x.clone()
blocks[(5, 2)](x, sums, 4, 16)
product = before @ before.transpose(-1, -2)
want = before / before.square().sum(-1, keepdim=True) + product.amax(-1, keepdim=True)
torch.testing.assert_close(x, want)
torch.testing.assert_close(sums, before.sum((1, 2, 3)))
print("blocks")
