"""A Fourier neural operator, on grids of any size.

Source: Z. Li et al., "Fourier neural operator for parametric partial differential equations", ICLR 2021.
"""

import torch
from torch import Tensor
from torch.nn.functional import avg_pool2d, gelu, pad


class FourierOperator(torch.nn.Module):
    """A field on cells, (..., n, n), to values at interior nodes, (..., n - 1, n - 1), zero at the boundary.

    Rounds z <- gelu(R z + W z) with R on the `modes` lowest frequencies of each axis.
    """

    def __init__(self, width: int, modes: int, rounds: int, *, seed: int, dtype: torch.dtype):
        super().__init__()
        self.sizes = {"width": width, "modes": modes, "rounds": rounds}
        layer = torch.nn.Conv2d
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.lift = layer(3, width, 1, dtype=dtype)
            self.W = torch.nn.ModuleList(layer(width, width, 1, dtype=dtype) for _ in range(rounds))
            shape = rounds, 2, width, width, modes, modes, 2  # positive and negative; real and imaginary
            self.R = torch.nn.Parameter(torch.randn(shape, dtype=dtype) / width)
            self.hidden = layer(width, 4 * width, 1, dtype=dtype)
            self.last = layer(4 * width, 1, 1, dtype=dtype)
        torch.nn.init.constant_(self.last.bias, 0.25)  # type: ignore[arg-type]

    def forward(self, field: Tensor) -> Tensor:
        n, m = field.shape[-1], self.sizes["modes"]
        a = field.to(self.R.dtype).reshape(-1, n, n)
        x = ((torch.arange(n, dtype=a.dtype, device=a.device) + 0.5) / n).expand_as(a)
        z = pad(self.lift(torch.stack((a, x, x.mT), 1)), (0, n // 4, 0, n // 4))  # the field is not periodic
        for R, W in zip(torch.view_as_complex(self.R), self.W, strict=True):
            Z = torch.fft.rfft2(z, norm="forward")
            low = torch.zeros_like(Z)
            for part, rows in zip(R, (slice(m), slice(-m, None)), strict=True):
                low[..., rows, :m] = torch.einsum("bixy,ioxy->boxy", Z[..., rows, :m], part)
            z = gelu(torch.fft.irfft2(low, s=z.shape[-2:], norm="forward") + W(z))
        bump = 16 * x * (1 - x) * x.mT * (1 - x.mT)
        u = self.last(gelu(self.hidden(z[..., :n, :n]))) * bump.unsqueeze(1)
        return avg_pool2d(u, 2, 1).reshape(*field.shape[:-2], n - 1, n - 1).to(field.dtype)

    def settings(self) -> dict[str, int]:
        return self.sizes
