"""Train a small PyTorch network on made-up images; with --lolat-model, predict its latency first.

    python examples/train_torch.py --lolat-model epyc-2t

Copy the function `forecast` into a script of your own.
"""

from __future__ import annotations

import argparse

import torch
from torch import Tensor, nn

SIZE = (3, 32, 32)


def network() -> nn.Module:
    """Three stages of convolutions and a classifier of ten classes."""
    layers: list[nn.Module] = []
    inside = SIZE[0]
    for width in (32, 64, 128):
        layers += [
            nn.Conv2d(inside, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU(inplace=True),
            nn.Conv2d(width, width, 3, 2, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU(inplace=True),
        ]  # fmt: skip
        inside = width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inside, 10))


def forecast(model_file: str, net: nn.Module, size: tuple[int, ...], batch_size: int) -> None:
    """Print how long a forward pass takes on the device of a LoLat model, and where the time goes.

    Nothing is run, and the network stays as it is; `size` is that of one sample.
    """
    import lolat

    found = lolat.load(model_file).predict(lolat.read(net, size), batch_size)
    sure = "" if found.interval_ms is None else " ({:.3g} .. {:.3g})".format(*found.interval_ms)
    took = f"{found.latency_ms:.3g} ms{sure}"
    print(f"LoLat: a forward pass of {batch_size} takes {took}, most of it")
    for block in sorted(found.blocks, key=lambda b: b.latency_ms, reverse=True)[:3]:
        print(f"  {100 * block.share:3.0f} %  {block.name}: {block.latency_ms:.3g} ms")
    for warning in found.warnings:
        print(f"  note: {warning}")


def train(net: nn.Module, images: Tensor, labels: Tensor, epochs: int, batch_size: int) -> None:
    """The usual loop; prints the loss of each epoch."""
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    net.train()
    for epoch in range(1, epochs + 1):
        total = 0.0
        for batch, wanted in zip(images.split(batch_size), labels.split(batch_size), strict=True):
            loss = nn.functional.cross_entropy(net(batch), wanted)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += float(loss.detach()) * len(batch)
        print(f"epoch {epoch}: loss {total / len(images):.3f}")


def main() -> None:
    """Read the command line, ask LoLat, train."""
    parser = argparse.ArgumentParser(description="Train a small network on made-up images.")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--samples", type=int, default=256)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--lolat-model", metavar="MODEL", help="ask LoLat first: a file or a name")
    asked = parser.parse_args()

    torch.manual_seed(0)
    net = network()
    if asked.lolat_model:
        forecast(asked.lolat_model, net, SIZE, asked.batch_size)
    images, labels = torch.randn(asked.samples, *SIZE), torch.randint(10, (asked.samples,))
    train(net, images, labels, asked.epochs, asked.batch_size)


if __name__ == "__main__":
    main()
