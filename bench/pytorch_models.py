#!/usr/bin/env python3
"""The models of bench/train_vs_pytorch in PyTorch: times training steps, prints one JSON object.

usage: pytorch_models.py MODEL --batch N [--steps N] [--warmup N] [--threads N] [--dtype f32|bf16]
       pytorch_models.py --version

MODEL is a spec as Lockstep takes it: mlp:..., cnn, resnet18, gpt:layers=,heads=,width=,context=,vocab=.
Same architecture, same optimizer, made-up data on both sides. Where PyTorch has a faster way of saying the
same thing (fused attention, fused AdamW), it is taken when this version has it. bf16 is torch.autocast
around forward and loss, as its documentation says.
"""
import argparse
import json
import resource
import statistics
import sys
import time

try:
    import torch
    import torch.nn as nn
    import torch.nn.functional as F
except ImportError as error:
    sys.exit(f"{sys.executable}: {error}; apt-get install python3-torch libopenblas0-pthread, "
             "or set PYTHON to an interpreter that has torch")


def mlp(spec):
    widths = [int(w) for w in spec.split(",")]
    layers = []
    for i, (a, b) in enumerate(zip(widths, widths[1:])):
        layers += ([nn.ReLU()] if i else []) + [nn.Linear(a, b)]
    return nn.Sequential(nn.Flatten(), *layers), (widths[0],), widths[-1]


def cnn(_):
    """The network of PyTorch's MNIST example."""
    return nn.Sequential(nn.Conv2d(1, 32, 3), nn.ReLU(), nn.Conv2d(32, 64, 3), nn.ReLU(), nn.MaxPool2d(2),
                         nn.Dropout(0.25), nn.Flatten(), nn.Linear(9216, 128), nn.ReLU(), nn.Dropout(0.5),
                         nn.Linear(128, 10)), (1, 28, 28), 10


class Residual(nn.Module):
    """Two 3 x 3 convolutions and a shortcut."""

    def __init__(self, a, b, stride):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(a, b, 3, stride, 1, bias=False), nn.BatchNorm2d(b)
        self.conv2, self.bn2 = nn.Conv2d(b, b, 3, 1, 1, bias=False), nn.BatchNorm2d(b)
        self.shortcut = nn.Sequential()
        if stride != 1 or a != b:
            self.shortcut = nn.Sequential(nn.Conv2d(a, b, 1, stride, bias=False), nn.BatchNorm2d(b))

    def forward(self, x):
        y = F.relu(self.bn1(self.conv1(x)), inplace=True)
        return F.relu(self.bn2(self.conv2(y)) + self.shortcut(x), inplace=True)


def resnet18(_):
    """For 32 x 32 images: a 3 x 3 stem, no pooling after it."""
    layers = [nn.Conv2d(3, 64, 3, 1, 1, bias=False), nn.BatchNorm2d(64), nn.ReLU(inplace=True)]
    for a, b, stride in ((64, 64, 1), (64, 128, 2), (128, 256, 2), (256, 512, 2)):
        layers += [Residual(a, b, stride), Residual(b, b, 1)]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 10)), (3, 32, 32), 10


class Block(nn.Module):
    def __init__(self, width, heads, context):
        super().__init__()
        self.heads = heads
        self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.fc, self.out = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.gelu = nn.GELU(approximate="tanh")
        self.register_buffer("mask", torch.ones(context, context).tril().bool(), persistent=False)

    def attend(self, x):
        b, t, c = x.shape
        q, k, v = (p.view(b, t, self.heads, -1).transpose(1, 2) for p in self.qkv(x).split(c, 2))
        if hasattr(F, "scaled_dot_product_attention"):
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            scores = (q @ k.transpose(-2, -1)) * (k.shape[-1] ** -0.5)
            y = scores.masked_fill(~self.mask[:t, :t], float("-inf")).softmax(-1) @ v
        return self.proj(y.transpose(1, 2).reshape(b, t, c))

    def forward(self, x):
        x = x + self.attend(self.ln_1(x))
        return x + self.out(self.gelu(self.fc(self.ln_2(x))))


class GPT(nn.Module):
    """GPT-2: tied embedding, learned positions."""

    def __init__(self, layers, heads, width, context, vocab):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(vocab, width), nn.Embedding(context, width)
        self.blocks = nn.Sequential(*(Block(width, heads, context) for _ in range(layers)))
        self.ln_f = nn.LayerNorm(width)

    def forward(self, tokens):
        x = self.wte(tokens) + self.wpe.weight[:tokens.shape[1]]
        return F.linear(self.ln_f(self.blocks(x)), self.wte.weight)


def gpt(spec):
    keys = {key: int(value) for key, value in (part.split("=") for part in spec.split(","))}
    return GPT(**keys), (keys["context"],), keys["vocab"]


def adamw(parameters):
    try:
        return torch.optim.AdamW(parameters, lr=1e-4, weight_decay=0.1, fused=True)
    except (RuntimeError, TypeError):  # older versions fuse on CUDA only
        return torch.optim.AdamW(parameters, lr=1e-4, weight_decay=0.1)


def run(options):
    torch.manual_seed(1)
    kind, _, spec = options.model.partition(":")
    model, shape, classes = {"mlp": mlp, "cnn": cnn, "resnet18": resnet18, "gpt": gpt}[kind](spec)
    tokens = kind == "gpt"
    optimizer = adamw(model.parameters()) if tokens else torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    n = options.batch
    x = torch.randint(classes, (n, *shape)) if tokens else torch.rand(n, *shape) * 2 - 1
    y = torch.randint(classes, (n, *shape) if tokens else (n,))
    times = []
    for i in range(options.warmup + options.steps):
        begin = time.perf_counter()
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=options.dtype == "bf16"):
            loss = F.cross_entropy(model(x).view(-1, classes), y.view(-1))
        loss.backward()
        optimizer.step()
        if i >= options.warmup:
            times.append((time.perf_counter() - begin) * 1e3)
    print(json.dumps({
        "model": options.model,
        "dtype": options.dtype,
        "params": sum(p.numel() for p in model.parameters()),
        "step_ms_p50": statistics.median(times),
        "peak_rss_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }, separators=(",", ":")))


def version():
    """PyTorch's version, and the library that its matrix products come from."""
    torch.ones(64, 64) @ torch.ones(64, 64)
    with open("/proc/self/maps", encoding="ascii", errors="replace") as maps:
        files = {line.split()[-1].rsplit("/", 1)[-1] for line in maps if ".so" in line}
    blas = sorted(f for f in files if any(word in f for word in ("openblas", "blis", "mkl_rt", "libblas", "atlas")))
    mkldnn = "oneDNN" if torch.backends.mkldnn.is_available() else "no oneDNN"
    print(f"PyTorch {torch.__version__} ({sys.executable}); BLAS: {' '.join(blas) or 'built in'}; {mkldnn}")
    if not any("openblas" in f or "mkl" in f or "blis" in f for f in blas):
        print("This BLAS may be a slow one: apt-get install libopenblas0-pthread")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("model", nargs="?")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--warmup", type=int, default=2)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--dtype", choices=("f32", "bf16"), default="f32")
    parser.add_argument("--version", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    if options.version:
        version()
    elif options.model:
        run(options)
    else:
        parser.error("which model?")


if __name__ == "__main__":
    main()
