# SPDX-License-Identifier: MIT
"""PyTorch as a rival: torch_window.py ELEMENTS THREADS

Answers each line of its input with a time in seconds. "accumulate": one micro-batch added to `.grad`. "sgd", "adam":
the last micro-batch of a window of two, i.e. accumulate, divide, step and clear.
"""
import sys
import time

import torch

elements, threads = int(sys.argv[1]), int(sys.argv[2])
torch.set_num_threads(threads)
torch.manual_seed(1)


def window(make):
    weights = torch.nn.Parameter(torch.rand(elements))
    weights.grad = torch.rand(elements)
    return weights, make([weights])


gradient = torch.rand(elements)
windows = {}
makers = {
    "sgd": lambda weights: torch.optim.SGD(weights, lr=0.01),
    "adam": lambda weights: torch.optim.Adam(weights, lr=1e-3),
}


@torch.no_grad()
def run(what):
    kind = "sgd" if what == "accumulate" else what
    if kind not in windows:
        windows[kind] = window(makers[kind])
        windows[kind][1].step()
    weights, optimizer = windows[kind]
    start = time.perf_counter()
    weights.grad.add_(gradient)
    if what != "accumulate":
        weights.grad.mul_(0.5)
        optimizer.step()
        weights.grad.zero_()
    return time.perf_counter() - start


def check():
    """One window gives what the mean of two gradients gives."""
    weights = torch.nn.Parameter(torch.ones(4))
    optimizer = torch.optim.SGD([weights], lr=0.5)
    weights.grad = torch.full((4,), 1.0)
    weights.grad.add_(torch.full((4,), 3.0)).mul_(0.5)
    optimizer.step()
    assert torch.allclose(weights, torch.zeros(4)), weights


check()
for line in sys.stdin:
    print(run(line.strip()), flush=True)
