"""A convolution written as an autograd Function: the number of calls in its backward, and their cost.

The weight is masked: only some of the input channels are used. Every variant computes the same output and the
same two gradients, for x and for the whole weight.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import torch
import torch.nn.functional as F
from common import BLUE, ORANGE, Experiment, difference, medians, new_figure, table
from torch import Tensor

import learnsolve as ls

STRIDE, PADDING = 2, 1


class NNGrad(torch.autograd.Function):
    """The backward of the question, with torch.nn.grad."""

    @staticmethod
    def forward(ctx, x, w, used):
        xs, ws = x[:, used], w[:, used]
        ctx.save_for_backward(xs, ws, used)
        ctx.shapes = x.shape, w.shape
        return F.conv2d(xs, ws, stride=STRIDE, padding=PADDING)

    @staticmethod
    def backward(ctx, g):
        xs, ws, used = ctx.saved_tensors
        gx = torch.nn.grad.conv2d_input(xs.shape, ws, g, STRIDE, PADDING)
        gw = torch.nn.grad.conv2d_weight(xs, ws.shape, g, STRIDE, PADDING)
        return *_widened(gx, gw, used, ctx.shapes), None


class NNGrad2020(NNGrad):
    """The same, with the weight's gradient as one convolution with one group per image and channel.

        w'[o, c, a, b] = sum_n sum_p g[n, o, p] x[n, c, stride p + (a, b)]

    Each x[n, c] is an image of one channel, and the g[n, o] are its dilated filters: N C groups.
    """

    @staticmethod
    def backward(ctx, g):
        xs, ws, used = ctx.saved_tensors
        (n, c, *image), (o, _, *window) = xs.shape, ws.shape
        rest = [image[i] + 2 * PADDING - window[i] - STRIDE * (g.shape[2 + i] - 1) for i in (0, 1)]
        gx = F.conv_transpose2d(g, ws, stride=STRIDE, padding=PADDING, output_padding=rest)
        filters = g.unsqueeze(1).expand(n, c, *g.shape[1:]).reshape(n * c * o, 1, *g.shape[2:])
        all_images = F.conv2d(
            xs.reshape(1, n * c, *image), filters, dilation=STRIDE, padding=PADDING, groups=n * c
        )
        gw = all_images.reshape(n, c, o, *all_images.shape[2:]).sum(0).transpose(0, 1)
        return *_widened(gx, gw[..., : window[0], : window[1]], used, ctx.shapes), None


class OneCall(NNGrad):
    """Both gradients, as far as required, in one call of the operator that torch itself uses."""

    @staticmethod
    def backward(ctx, g):
        xs, ws, used = ctx.saved_tensors
        needed = [ctx.needs_input_grad[0], ctx.needs_input_grad[1], False]
        pair = [STRIDE] * 2, [PADDING] * 2, [1, 1]
        gx, gw, _ = torch.ops.aten.convolution_backward(g, xs, ws, None, *pair, False, [0, 0], 1, needed)
        return *_widened(gx, gw, used, ctx.shapes), None


def _widened(gx, gw, used, shapes):
    """The gradients for all channels: zero for those that are not used."""
    return tuple(
        None if part is None else part.new_zeros(shape).index_copy_(1, used, part)
        for part, shape in zip((gx, gw), shapes, strict=True)
    )


def strided_stencil(c: Tensor, x: Tensor) -> Tensor:
    """y[i, j] = sum_ab c[a, b] x[2 i + a - 1, 2 j + b - 1], a window of 3 x 3 with stride 2.

    A stencil has stride 1. The even and the odd points of x along each axis form four grids, on which stride
    2 becomes stride 1: 2 i + a - 1 is the point i + s of the grid p.
    """
    places = {-1: (1, -1), 0: (0, 0), 1: (1, 0)}  # a - 1: (p, s)
    total = None
    for p in (0, 1):
        for q in (0, 1):
            terms = [
                (c[..., a + 1, b + 1], (s, t))
                for a, (pa, s) in places.items()
                for b, (pb, t) in places.items()
                if (pa, pb) == (p, q)
            ]
            coefficients = torch.stack([each for each, _ in terms], -1)[..., None, None]
            y = ls.ops.stencil(coefficients, x[..., p::2, q::2], offsets=[offset for _, offset in terms])
            total = y if total is None else total + y
    assert total is not None
    return total


def masked(x, w, used, mask):
    return F.conv2d(x, w * mask, stride=STRIDE, padding=PADDING)


def chosen(x, w, used, mask):
    return F.conv2d(x[:, used], w[:, used], stride=STRIDE, padding=PADDING)


def by_stencil(x, w, used, mask):
    # One image per pair of channels, added up: the stencil has no sum over channels.
    return strided_stencil(w[:, used], x[:, used].unsqueeze(1)).sum(2)


VARIANTS = {
    "Function, torch.nn.grad as of 2020": lambda x, w, used, mask: NNGrad2020.apply(x, w, used),
    "Function, torch.nn.grad": lambda x, w, used, mask: NNGrad.apply(x, w, used),
    "Function, convolution_backward": lambda x, w, used, mask: OneCall.apply(x, w, used),
    "no Function, masked weight": masked,
    "no Function, chosen channels": chosen,
    "stencil, summed over channels": by_stencil,
}

# The stencil is suitable if each channel has its own window, in particular with stride 1.
DEPTHWISE = {
    "conv2d, a group for each channel": lambda x, w: F.conv2d(
        x, w.unsqueeze(1), stride=STRIDE, padding=PADDING, groups=x.shape[1]
    ),
    "stencil": lambda x, w: strided_stencil(w, x),
}
ONE_GRID = {
    "conv2d": lambda x, w: F.conv2d(x, w[None, None], padding=PADDING),
    "stencil": lambda x, w: ls.ops.stencil(w, x),
}


def measured(functions: dict, inputs: tuple[Tensor, Tensor], seconds: float) -> list[dict]:
    """Calls, times and gradients of functions of the two inputs; gradients are compared with the first."""
    outputs = {name: f(*inputs) for name, f in functions.items()}
    first = next(iter(outputs.values()))
    g = torch.randn(first.shape, dtype=first.dtype, generator=torch.Generator().manual_seed(1))

    def backward(name):
        return torch.autograd.grad(outputs[name], inputs, g, retain_graph=True)

    gradients = {name: backward(name) for name in functions}
    forward = medians({name: lambda f=f: f(*inputs) for name, f in functions.items()}, seconds)
    back = medians({name: lambda n=name: backward(n) for name in functions}, seconds)
    exact = gradients[next(iter(functions))]
    rows = []
    for name, f in functions.items():
        found = ls.profile(f, *inputs, repeats=1, warmup=1)
        rows.append(
            {
                "variant": name,
                "calls forward": found.forward.calls,
                "calls backward": found.backward.calls,
                "forward ms": 1e3 * forward[name],
                "backward ms": 1e3 * back[name],
                "backward / forward": back[name] / forward[name],
                "output differs by": difference(outputs[name], first),
                "gradient for x differs by": difference(gradients[name][0], exact[0]),
                "gradient for w differs by": difference(gradients[name][1], exact[1]),
            }
        )
    return rows


def main() -> None:
    experiment = Experiment(__file__, __doc__)
    n, channels, half, out, size = (4, 8, 4, 8, 12) if experiment.quick else (128, 128, 64, 32, 16)
    grid = 30 if experiment.quick else 1000
    seconds = 0.05 if experiment.quick else 2.0
    x = torch.randn(n, channels, size, size, requires_grad=True)
    w = torch.randn(out, channels, 3, 3, requires_grad=True)
    used = torch.arange(0, channels, channels // half)
    mask = torch.zeros(1, channels, 1, 1).index_fill_(1, used, 1.0)
    functions = {name: lambda x, w, f=f: f(x, w, used, mask) for name, f in VARIANTS.items()}
    with torch.backends.mkldnn.flags(enabled=False):
        plain = measured(functions, (x, w), seconds)
    with torch.backends.mkldnn.flags(enabled=True):
        onednn = measured(functions, (x, w), seconds)
        depthwise = measured(DEPTHWISE, (x, w[0].detach().clone().requires_grad_()), seconds)
        large = torch.randn(1, 1, grid, grid, requires_grad=True)
        one_grid = measured(ONE_GRID, (large, torch.randn(3, 3, requires_grad=True)), seconds)
    cases = {
        "with oneDNN": onednn,
        "without oneDNN": plain,
        "depth-wise, with oneDNN": depthwise,
        f"one grid of {grid} x {grid}, stride 1, with oneDNN": one_grid,
    }
    for title, rows in cases.items():
        print(f"\n{title}\n{table(rows)}")
    problem = {"batch": n, "channels": channels, "used": half, "out": out, "image": size, "window": 3}
    experiment.json("calls.json", problem={**problem, "stride": STRIDE, "padding": PADDING}, cases=cases)
    experiment.csv("calls.csv", [{"case": title, **row} for title, rows in cases.items() for row in rows])
    experiment.figure("calls.png", picture(plain, onednn))


def picture(plain: list[dict], onednn: list[dict]):
    figure, axes = new_figure("A masked convolution of stride 2", "ms", "")
    for rows, color, label, shift in (
        (plain, ORANGE, "without oneDNN", 0.14),
        (onednn, BLUE, "with oneDNN", -0.14),
    ):
        for number, row in enumerate(rows):
            y = shift - number
            before, after = row["forward ms"], row["backward ms"]
            axes.plot([before, after], [y, y], color=color, linewidth=1)
            axes.plot(before, y, marker="o", markersize=6, color=color, markerfacecolor="white")
            axes.plot(after, y, marker="o", markersize=6, color=color)
            calls = f"{row['calls backward']:,} calls"
            axes.annotate(
                calls,
                (max(before, after), y),
                (7, 0),
                textcoords="offset points",
                va="center",
                fontsize=7.5,
                color=color,
            )
        axes.plot([], [], color=color, marker="o", label=f"{label}: backward, and its calls")
        axes.plot(
            [], [], color=color, marker="o", markerfacecolor="white", linestyle="none", label="    forward"
        )
    axes.set_xscale("log")
    axes.set_yticks([-number for number in range(len(plain))], [row["variant"] for row in plain])
    left, right = axes.get_xlim()
    axes.set_xlim(left, right * 2)  # room for the labels
    axes.legend(frameon=False, loc="lower left", fontsize=7.5)
    return figure


if __name__ == "__main__":
    main()
