#!/usr/bin/python3
"""Writes tests/data/operations.safetensors: inputs, outputs and gradients of every operation of
include/lockstep/ops.h as PyTorch computes them, for tests/test_autograd_pytorch.c.

    /usr/bin/python3 scripts/reference/operations.py [FILE]

Needs python3-torch and python3-numpy (made with Debian 12's torch 1.13.0). Tensors of a case `c`: c.in0, c.in1,
... the inputs; c.ints the integer input; c.y the output; c.w a fixed random cotangent; c.grad0, ...
the gradients of sum(w * y). Computed in float32 from one fixed seed.
"""

import json
import math
import struct
import sys

import numpy as np
import torch
import torch.nn.functional as F

tensors = {}


def keep(name, value):
    value = value.detach().numpy()
    kind = np.int32 if value.dtype.kind == "i" else np.float32
    tensors[name] = np.ascontiguousarray(value.astype(kind)).reshape(value.shape)


def case(name, function, *shapes, ints=None, positive=False, training=True):
    """Runs function(*inputs[, ints]) and keeps everything under `name`."""
    inputs = []
    for shape in shapes:
        x = torch.rand(shape) * 1.5 + 0.5 if positive else torch.randn(shape)
        inputs.append(x.requires_grad_(training))
    arguments = list(inputs)
    if ints is not None:
        ints = torch.tensor(ints)
        keep(name + ".ints", ints)
        arguments.append(ints)
    y = function(*arguments)
    for i, x in enumerate(inputs):
        keep(f"{name}.in{i}", x)
    keep(name + ".y", y)
    if training:
        w = torch.randn(y.shape)
        (w * y).sum().backward()
        keep(name + ".w", w)
        for i, x in enumerate(inputs):
            keep(f"{name}.grad{i}", x.grad)


def causal_attention(heads):
    def attend(qkv):
        b, t, c = qkv.shape[0], qkv.shape[1], qkv.shape[2] // 3
        q, k, v = (p.view(b, t, heads, c // heads).transpose(1, 2) for p in qkv.split(c, dim=2))
        scores = q @ k.transpose(-2, -1) / math.sqrt(c // heads)
        hidden = torch.triu(torch.ones(t, t, dtype=torch.bool), diagonal=1)
        weights = scores.masked_fill(hidden, float("-inf")).softmax(-1)
        return (weights @ v).transpose(1, 2).reshape(b, t, c)

    return attend


def batch_norm(name, *shape):
    """Training, with what a running average of momentum 1 sees; then with these as constants."""
    mean, var = torch.zeros(shape[1]), torch.ones(shape[1])
    norm = lambda x, w, b: F.batch_norm(x, mean, var, w, b, training=True, momentum=1.0, eps=1e-5)
    case(name, norm, shape, (shape[1],), (shape[1],))
    keep(name + ".mean", mean)
    keep(name + ".var", var)
    norm = lambda x, w, b: F.batch_norm(x, mean, var, w, b, training=False, eps=1e-5)
    case(name + "_eval", norm, shape, (shape[1],), (shape[1],), training=False)


def products_and_images():
    case("linear", F.linear, (6, 20), (11, 20), (11,))
    case("linear_3d", F.linear, (2, 5, 16), (33, 16))
    case("linear_io", lambda x, w, b: x @ w + b, (2, 5, 16), (16, 9), (9,))
    case("matmul", torch.matmul, (7, 12), (12, 5))
    case("matmul_batch", torch.matmul, (2, 3, 4, 6), (2, 3, 6, 5))
    case("conv2d", F.conv2d, (2, 3, 8, 8), (5, 3, 3, 3), (5,))
    case("conv2d_pad", lambda x, w, b: F.conv2d(x, w, b, 1, 1), (2, 4, 6, 7), (8, 4, 3, 3), (8,))
    case("conv2d_stride", lambda x, w: F.conv2d(x, w, None, 2, 2), (2, 1, 9, 9), (4, 1, 5, 5))
    case("max_pool2d", lambda x: F.max_pool2d(x, 2), (2, 3, 8, 8))
    case("max_pool2d_pad", lambda x: F.max_pool2d(x, 3, 2, 1), (2, 2, 7, 9))
    case("avg_pool2d", lambda x: F.avg_pool2d(x, 2), (2, 3, 8, 8))
    case("avg_pool2d_pad", lambda x: F.avg_pool2d(x, 3, 2, 1), (2, 2, 7, 9))


def norms_and_elementwise():
    case("layer_norm", lambda x, w, b: F.layer_norm(x, w.shape, w, b, 1e-5), (6, 32), (32,), (32,))
    case("layer_norm_3d", lambda x, w, b: F.layer_norm(x, w.shape, w, b, 1e-5), (2, 3, 7), (7,), (7,))
    batch_norm("batch_norm", 3, 4, 5, 5)
    batch_norm("batch_norm_2d", 8, 6)
    case("relu", F.relu, (5, 33))
    case("gelu", F.gelu, (5, 33))
    case("gelu_tanh", lambda x: F.gelu(x, approximate="tanh"), (5, 33))
    case("tanh", torch.tanh, (5, 33))
    case("sigmoid", torch.sigmoid, (5, 33))
    case("exp", torch.exp, (5, 33))
    case("log", torch.log, (5, 33), positive=True)
    case("sqrt", torch.sqrt, (5, 33), positive=True)
    case("neg", torch.neg, (5, 33))
    case("scale", lambda x: x * -1.75, (5, 33))
    case("add_scalar", lambda x: x + 0.625, (5, 33))
    for name, f in {"add": torch.add, "sub": torch.sub, "mul": torch.mul, "div": torch.div}.items():
        case(name, f, (4, 9), (4, 9), positive=name == "div")
        case(name + "_repeated", f, (3, 4, 9), (9,), positive=name == "div")
    case("softmax", lambda x: F.softmax(x, -1), (6, 19))
    case("log_softmax", lambda x: F.log_softmax(x, -1), (2, 3, 19))


def reductions_and_shapes():
    case("sum", torch.sum, (4, 9))
    case("mean", torch.mean, (4, 9))
    case("sum_dim", lambda x: x.sum(1), (3, 4, 5))
    case("mean_dim", lambda x: x.mean(0), (3, 4, 5))
    case("max_dim", lambda x: x.max(2).values, (3, 4, 5))
    case("reshape", lambda x: x.reshape(6, 10), (3, 4, 5))
    case("permute", lambda x: x.permute(2, 0, 3, 1), (2, 3, 4, 5))
    case("transpose", lambda x: x.transpose(1, 2), (2, 3, 4, 5))
    case("slice", lambda x: x[:, 1:3], (3, 4, 5))
    case("concat", lambda a, b, c: torch.cat([a, b, c], 1), (2, 3, 4), (2, 1, 4), (2, 2, 4))


def language_and_losses():
    case("embedding", lambda t, i: F.embedding(i, t), (11, 6), ints=[[3, 0, 3], [10, 1, 3]])
    case("causal_attention", causal_attention(2), (2, 7, 3 * 8))
    case("causal_attention_4", causal_attention(4), (1, 16, 3 * 32))
    loss = lambda x, t: F.cross_entropy(x.view(-1, x.shape[-1]), t.view(-1), ignore_index=-1, reduction="sum")
    case("cross_entropy", loss, (5, 13), ints=[12, 0, 3, 3, 7])
    case("cross_entropy_padded", loss, (2, 3, 13), ints=[[12, -1, 3], [-1, -1, 7]])
    case("squared_error", lambda a, b: F.mse_loss(a, b, reduction="sum"), (4, 9), (4, 9))


def write(path):
    """The safetensors format: length of the header, the header as JSON, the data."""
    header = {"__metadata__": {"made_by": "scripts/reference/operations.py, torch " + torch.__version__}}
    offset = 0
    for name, value in tensors.items():
        kind = "I32" if value.dtype == np.int32 else "F32"
        end = offset + value.nbytes
        header[name] = {"dtype": kind, "shape": list(value.shape), "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for value in tensors.values():
            file.write(value.tobytes())


if __name__ == "__main__":
    torch.manual_seed(20240601)
    torch.set_num_threads(1)
    products_and_images()
    norms_and_elementwise()
    reductions_and_shapes()
    language_and_losses()
    write(sys.argv[1] if len(sys.argv) > 1 else "tests/data/operations.safetensors")
