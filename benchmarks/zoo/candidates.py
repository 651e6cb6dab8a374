"""Blocks that may join the predefined ones, and whole networks of real size."""

from __future__ import annotations

from microbench import families as f
from microbench import networks as w
from microbench import parts as p
from microbench.blocks import _row

MOBILE = [(1, 16, 1, 1, 3), (6, 24, 2, 2, 3), (6, 32, 3, 2, 3), (6, 64, 4, 2, 3), (6, 96, 3, 1, 3),
          (6, 160, 3, 2, 3), (6, 320, 1, 1, 3)]  # fmt: skip
MBCONV = [(1, 16, 1, 1, 3), (6, 24, 2, 2, 3), (6, 40, 2, 2, 5), (6, 80, 3, 2, 3), (6, 112, 3, 1, 5),
          (6, 192, 4, 2, 5), (6, 320, 1, 1, 3)]  # fmt: skip
CANDIDATES = (
    _row("2 encoders 197x192", (1, 4), p.encoder, 197, 192, 3, 2),
    _row("encoder 128x768", (1, 2), p.encoder, 128, 768, 12),
    _row("encoder 64x256", (8,), p.encoder, 64, 256, 8),
    _row("token mlp 3136x96", (1,), p.token_mlp, 3136, 96, 384),
    _row("token mlp 196x384", (1, 4), p.token_mlp, 196, 384, 1536),
    _row("token mlp 784x192 relu", (1,), p.token_mlp, 784, 192, 768, "relu"),
    _row("convnext depthwise 96x56x56", (1,), f.convnext, 56, 96, grouped=False),
    _row("2 convnext depthwise 384x14x14", (1, 4), f.convnext, 14, 384, count=2, grouped=False),
    _row("up transposed 64x56x56", (1,), p.up, 56, 64),
    _row("up transposed 512x7x7", (1, 4), p.up, 7, 512),
    _row("layer norm, gelu 96x56x56", (1,), p.norm_act, 56, 96, "gelu", "layer_norm"),
    _row("norm, silu 96x56x56", (1,), p.norm_act, 56, 96, "silu"),
    _row("depthwise 7x7 192x28x28", (1,), f.depthwise, 28, 192, 7, 1),
    _row("depthwise 3x3 240x28x28", (1, 8), f.depthwise, 28, 240, 3, 1),
    _row("conv 3x3 512x14x14", (1,), f.conv_bn, 14, 512, 512, 3),
    _row("conv 3x3 128x28x28", (1, 8), f.conv_bn, 28, 128, 128, 3),
    _row("conv 1x1 1024x14x14", (1, 4), f.conv_bn, 14, 1024, 256, 1),
    _row("conv 1x1 2048x7x7", (1, 8), f.conv_bn, 7, 2048, 512, 1),
    _row("mlp 2 x 4096", (1, 8), p.mlp, 4096, 4096, 2),
)
NETWORKS = (
    _row("residual 50 160", (1,), w.residual, 160, (3, 4, 6, 3)),
    _row("residual 34 128", (1, 4), w.residual, 128, (3, 4, 6, 3), False),
    _row("grouped residual 50 128", (1,), w.residual, 128, (3, 4, 6, 3), groups=32),
    _row("inverted 224", (1,), w.inverted, 224, MOBILE, "relu6", False, 32, 1280),
    _row("inverted 128", (8,), w.inverted, 128, MOBILE, "relu6", False, 32, 1280),
    _row("mbconv 160", (1, 4), w.inverted, 160, MBCONV, "silu", True, 32, 1280),
    _row("dense net 121 128", (1,), w.dense_net, 128, (6, 12, 24, 16)),
    _row("vgg 11 96", (1, 4), w.vgg, 96, (1, 1, 2, 2, 2)),
    _row("separable 128", (1,), w.separable, 128, 728, 8),
    _row("branches 160", (1,), w.inception, 160, [(3, 64, None), (4, 192, 7), (2, 320, None)]),
    _row("convnext 128", (1,), w.convnext, 128, (3, 3, 9, 3)),
    _row("transformer 224", (1, 4), w.transformer, 224, 16, 384, 6, 8),
    _row("u-net 96", (1,), w.u_net, 96, (32, 64, 128, 256, 512)),
)
