#!/usr/bin/python3
"""Writes tests/data/model_*.safetensors: ten optimisation steps of each model by PyTorch in f64.

    /usr/bin/python3 scripts/reference/models.py        (Debian 12: python3-torch, python3-numpy)

Everything here is independent of Lockstep's C sources: random numbers (Philox4x32-10), initial
values, the hash and the file format are written again from their definitions. tests/test_nn_parity.c
and tests/test_nn_model.c read the files. Each holds the inputs, the mean loss and the norm of the
gradient of every step, and the parameters before ("init/NAME") and after ("final/NAME"), in f32;
of a large tensor only every STRIDE-th element ("init/NAME/101").
"""
import json
import math
import pathlib
import struct

import numpy as np
import torch
import torch.nn.functional as F

SEED = 7
STEPS = 10
STRIDE = 101
LARGE = 20000
OUT = pathlib.Path(__file__).resolve().parents[2] / "tests" / "data"


# --- random numbers and initial values --------------------------------------------------------------

def philox(seed, stream, counters):
    """(n, 4) uint32 words for the 64-bit counters (Salmon et al., SC 2011)."""
    c = np.asarray(counters, dtype=np.uint64)
    mask = np.uint64(0xFFFFFFFF)
    half = np.uint64(32)
    c0, c1 = c & mask, c >> half
    c2 = np.full_like(c, stream & 0xFFFFFFFF)
    c3 = np.full_like(c, stream >> 32)
    k0, k1 = seed & 0xFFFFFFFF, seed >> 32
    for _ in range(10):
        p0, p1 = np.uint64(0xD2511F53) * c0, np.uint64(0xCD9E8D57) * c2
        c0, c1, c2, c3 = ((p1 >> half) ^ c1 ^ np.uint64(k0), p1 & mask,
                          (p0 >> half) ^ c3 ^ np.uint64(k1), p0 & mask)
        k0, k1 = (k0 + 0x9E3779B9) & 0xFFFFFFFF, (k1 + 0xBB67AE85) & 0xFFFFFFFF
    return np.stack([c0, c1, c2, c3], axis=1)


def stream_of(text):
    h = 0xCBF29CE484222325
    for byte in text.encode():
        h = ((h ^ byte) * 0x100000001B3) & 0xFFFFFFFFFFFFFFFF
    return h


def words(name, count):
    n = (count + 3) // 4
    return philox(SEED, stream_of("init/" + name), np.arange(n))


def uniform(name, shape, fan_in):
    count = int(np.prod(shape))
    u = (words(name, count) >> np.uint64(8)).astype(np.float64) * 2.0**-24
    values = (2 * u.reshape(-1)[:count] - 1) * (1 / math.sqrt(fan_in))
    return values.astype(np.float32).reshape(shape)


def normal(name, shape, deviation):
    count = int(np.prod(shape))
    b = words(name, count).astype(np.float64).reshape(-1, 2)
    radius = np.sqrt(-2 * np.log((b[:, 0] + 1) * 2.0**-32))
    angle = b[:, 1] * 2.0**-32 * 6.283185307179586
    n = np.stack([radius * np.cos(angle), radius * np.sin(angle)], axis=1).astype(np.float32)
    values = n.reshape(-1)[:count].astype(np.float64) * deviation
    return values.astype(np.float32).reshape(shape)


def ones(*shape):
    return np.ones(shape, np.float32)


def zeros(*shape):
    return np.zeros(shape, np.float32)


# --- the hash (src/nn/hash.c states it) ---------------------------------------------------------------

def xxh64(data):
    p1, p2, p3 = 0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9
    p4, p5, m = 0x85EBCA77C2B2AE63, 0x27D4EB2F165667C5, 0xFFFFFFFFFFFFFFFF

    def rotate(x, r):
        return ((x << r) | (x >> (64 - r))) & m

    def lane(acc, x):
        return rotate((acc + x * p2) & m, 31) * p1 & m

    n, at = len(data), 0
    if n >= 32:
        v = [(p1 + p2) & m, p2, 0, -p1 & m]
        while at + 32 <= n:
            x = struct.unpack_from("<4Q", data, at)
            v = [lane(a, b) for a, b in zip(v, x)]
            at += 32
        h = sum(rotate(a, r) for a, r in zip(v, (1, 7, 12, 18))) & m
        for a in v:
            h = ((h ^ lane(0, a)) * p1 + p4) & m
    else:
        h = p5
    h = (h + n) & m
    while at + 8 <= n:
        h = (rotate(h ^ lane(0, struct.unpack_from("<Q", data, at)[0]), 27) * p1 + p4) & m
        at += 8
    if at + 4 <= n:
        h = (rotate(h ^ struct.unpack_from("<I", data, at)[0] * p1 & m, 23) * p2 + p3) & m
        at += 4
    for byte in data[at:]:
        h = rotate(h ^ byte * p5 & m, 11) * p1 & m
    h = (h ^ h >> 33) * p2 & m
    h = (h ^ h >> 29) * p3 & m
    return h ^ h >> 32


def model_hash(params):
    text = b""
    for name in sorted(params, key=lambda s: s.encode()):
        a = params[name]
        text += name.encode() + b"\0" + struct.pack("<Q%dQ" % a.ndim, a.ndim, *a.shape)
        text += a.astype("<f4").tobytes()
    return xxh64(text)


# --- files ------------------------------------------------------------------------------------------

def write(name, tensors, metadata):
    header, blob = {"__metadata__": metadata}, b""
    for key, a in tensors.items():
        dtype = {"float32": "F32", "float64": "F64", "int32": "I32"}[str(a.dtype)]
        data = np.ascontiguousarray(a).tobytes()
        header[key] = {"dtype": dtype, "shape": list(a.shape),
                       "data_offsets": [len(blob), len(blob) + len(data)]}
        blob += data
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    (OUT / name).write_bytes(struct.pack("<Q", len(text)) + text + blob)


def sampled(prefix, params):
    out = {}
    for name, a in params.items():
        a = np.asarray(a, dtype=np.float32)
        if a.size > LARGE:
            out["%s/%s/%d" % (prefix, name, STRIDE)] = a.reshape(-1)[::STRIDE]
        else:
            out["%s/%s" % (prefix, name)] = a
    return out


# --- the models, as functions of their parameters ----------------------------------------------------

def mlp_params(widths):
    p = {}
    for i, (n_in, n_out) in enumerate(zip(widths, widths[1:]), 1):
        for kind, shape in (("weight", (n_out, n_in)), ("bias", (n_out,))):
            name = "fc%d.%s" % (i, kind)
            p[name] = uniform(name, shape, n_in)
    return p


def mlp(p, x):
    x = x.reshape(len(x), -1)
    for i in range(1, len(p) // 2 + 1):
        x = F.linear(F.relu(x) if i > 1 else x, p["fc%d.weight" % i], p["fc%d.bias" % i])
    return x


def cnn_params():
    p = {}
    for layer, shape in (("conv1", (32, 1, 3, 3)), ("conv2", (64, 32, 3, 3)),
                         ("fc1", (128, 9216)), ("fc2", (10, 128))):
        fan_in = int(np.prod(shape[1:]))
        p[layer + ".weight"] = uniform(layer + ".weight", shape, fan_in)
        p[layer + ".bias"] = uniform(layer + ".bias", shape[:1], fan_in)
    return p


def cnn(p, x):
    x = F.relu(F.conv2d(x, p["conv1.weight"], p["conv1.bias"]))
    x = F.relu(F.conv2d(x, p["conv2.weight"], p["conv2.bias"]))
    x = F.max_pool2d(x, 2).flatten(1)
    x = F.relu(F.linear(x, p["fc1.weight"], p["fc1.bias"]))
    return F.linear(x, p["fc2.weight"], p["fc2.bias"])


def gpt_params(layers, width, context, vocab):
    p, c = {}, width
    p["wte.weight"] = normal("wte.weight", (vocab, c), 0.02)
    p["wpe.weight"] = normal("wpe.weight", (context, c), 0.02)
    for i in range(layers):
        h = "h.%d." % i
        for ln in ("ln_1", "ln_2"):
            p[h + ln + ".weight"], p[h + ln + ".bias"] = ones(c), zeros(c)
        for name, shape in (("attn.c_attn", (c, 3 * c)), ("attn.c_proj", (c, c)),
                            ("mlp.c_fc", (c, 4 * c)), ("mlp.c_proj", (4 * c, c))):
            deviation = 0.02 / math.sqrt(2 * layers) if name.endswith("c_proj") else 0.02
            p[h + name + ".weight"] = normal(h + name + ".weight", shape, deviation)
            p[h + name + ".bias"] = zeros(shape[1])
    p["ln_f.weight"], p["ln_f.bias"] = ones(c), zeros(c)
    return p


def gpt(p, tokens, layers, heads):
    b, t = tokens.shape
    c = p["wte.weight"].shape[1]
    mask = torch.full((t, t), float("-inf"), dtype=torch.float64).triu(1)

    def norm(x, name):
        return F.layer_norm(x, (c,), p[name + ".weight"], p[name + ".bias"], 1e-5)

    def conv1d(x, name):
        return x @ p[name + ".weight"] + p[name + ".bias"]

    x = p["wte.weight"][tokens] + p["wpe.weight"][:t]
    for i in range(layers):
        h = "h.%d." % i
        q, k, v = conv1d(norm(x, h + "ln_1"), h + "attn.c_attn").split(c, 2)
        q, k, v = (y.reshape(b, t, heads, c // heads).transpose(1, 2) for y in (q, k, v))
        weights = F.softmax(q @ k.transpose(2, 3) / math.sqrt(c // heads) + mask, -1)
        y = (weights @ v).transpose(1, 2).reshape(b, t, c)
        x = x + conv1d(y, h + "attn.c_proj")
        y = F.gelu(conv1d(norm(x, h + "ln_2"), h + "mlp.c_fc"), approximate="tanh")
        x = x + conv1d(y, h + "mlp.c_proj")
    return norm(x, "ln_f") @ p["wte.weight"].T


BN_SHAPES = (("conv1.weight", (4, 1, 3, 3)), ("conv2.weight", (6, 4, 3, 3)),
             ("fc.weight", (5, 24)), ("fc.bias", (5,)))


def bn_params():
    p = {}
    for name, shape in BN_SHAPES:
        p[name] = uniform(name, shape, 24 if name.startswith("fc") else int(np.prod(shape[1:])))
    for name, channels in (("bn1", 4), ("bn2", 6)):
        p[name + ".weight"], p[name + ".bias"] = ones(channels), zeros(channels)
        p[name + ".running_mean"], p[name + ".running_var"] = zeros(channels), ones(channels)
    return p


def bn_net(p, x, training=True):
    for i in "12":
        x = F.conv2d(x, p["conv%s.weight" % i])
        n = "bn%s." % i
        x = F.relu(F.batch_norm(x, p[n + "running_mean"], p[n + "running_var"], p[n + "weight"],
                                p[n + "bias"], training, 0.1, 1e-5))
    return F.linear(F.max_pool2d(x, 2).flatten(1), p["fc.weight"], p["fc.bias"])


RESNET_WIDTH = 4


def resnet_params(channels, classes, width):
    p = {}

    def conv_bn(conv, bn, n_in, n_out, kernel):
        shape = (n_out, n_in, kernel, kernel)
        name = conv + ".weight"
        p[name] = normal(name, shape, math.sqrt(2 / (n_out * kernel * kernel)))
        p[bn + ".weight"], p[bn + ".bias"] = ones(n_out), zeros(n_out)
        p[bn + ".running_mean"], p[bn + ".running_var"] = zeros(n_out), ones(n_out)

    conv_bn("conv1", "bn1", channels, width, 3)
    n_in = width
    for layer in range(4):
        n_out = width << layer
        for i in range(2):
            b = "layer%d.%d." % (layer + 1, i)
            conv_bn(b + "conv1", b + "bn1", n_in, n_out, 3)
            conv_bn(b + "conv2", b + "bn2", n_out, n_out, 3)
            if n_in != n_out:
                conv_bn(b + "downsample.0", b + "downsample.1", n_in, n_out, 1)
            n_in = n_out
    for name, shape in (("fc.weight", (classes, n_in)), ("fc.bias", (classes,))):
        p[name] = uniform(name, shape, n_in)
    return p


def resnet(p, x, training=True):
    def norm(x, n):
        return F.batch_norm(x, p[n + ".running_mean"], p[n + ".running_var"], p[n + ".weight"],
                            p[n + ".bias"], training, 0.1, 1e-5)

    x = F.pad(x, [(32 - x.shape[2]) // 2] * 4)
    x = F.relu(norm(F.conv2d(x, p["conv1.weight"], padding=1), "bn1"))
    for layer in range(4):
        for i in range(2):
            b = "layer%d.%d." % (layer + 1, i)
            stride = 2 if layer > 0 and i == 0 else 1
            y = F.conv2d(x, p[b + "conv1.weight"], stride=stride, padding=1)
            y = F.relu(norm(y, b + "bn1"))
            y = norm(F.conv2d(y, p[b + "conv2.weight"], padding=1), b + "bn2")
            if b + "downsample.0.weight" in p:
                x = norm(F.conv2d(x, p[b + "downsample.0.weight"], stride=stride),
                         b + "downsample.1")
            x = F.relu(y + x)
    return F.linear(x.mean((2, 3)), p["fc.weight"], p["fc.bias"])


# --- training ---------------------------------------------------------------------------------------

def train(file, spec, params, forward, inputs, targets, optimizer, clip=None, evaluate=None):
    """inputs, targets: lists of one batch a step (or one for all)."""
    p = {n: torch.tensor(a, dtype=torch.float64, requires_grad="running" not in n)
         for n, a in params.items()}
    opt = optimizer(p)
    losses, norms = [], []
    for step in range(STEPS):
        x = torch.tensor(inputs[step % len(inputs)])
        x = x.long() if x.dtype == torch.int32 else x.double()
        y = torch.tensor(targets[step % len(targets)]).long()
        logits = forward(p, x)
        loss = F.cross_entropy(logits.reshape(-1, logits.shape[-1]), y.reshape(-1))
        opt.zero_grad()
        loss.backward()
        weights = [t for t in p.values() if t.requires_grad]
        total = torch.nn.utils.clip_grad_norm_(weights, clip or float("inf"))
        norms.append(float(total))
        opt.step()
        losses.append(float(loss.detach()))
    tensors = {"inputs": np.stack(inputs), "targets": np.stack(targets),
               "losses": np.array(losses), "norms": np.array(norms)}
    if evaluate:
        with torch.no_grad():
            tensors["evaluation"] = evaluate(p, torch.tensor(inputs[0]).double()).numpy()
    tensors.update(sampled("init", params))
    tensors.update(sampled("final", {n: t.detach().numpy() for n, t in p.items()}))
    write(file, tensors, {"spec": spec, "seed": str(SEED), "hash": "%016x" % model_hash(params)
                          if sum(a.size for a in params.values()) < 50000 else ""})
    print(file, "losses", losses[0], "->", losses[-1], "norms", norms[0], norms[-1])


def main():
    rng = np.random.default_rng(1)
    images = lambda n, *shape: [rng.standard_normal(shape).astype(np.float32) for _ in range(n)]
    labels = lambda n, top, *shape: [rng.integers(0, top, shape).astype(np.int32) for _ in range(n)]
    values = lambda p: [t for t in p.values() if t.requires_grad]

    train("model_mlp.safetensors", "mlp:20,16,12,10", mlp_params((20, 16, 12, 10)), mlp,
          images(STEPS, 16, 20), labels(STEPS, 10, 16),
          lambda p: torch.optim.SGD(values(p), lr=0.1, momentum=0.9, nesterov=True,
                                    weight_decay=0.01))
    train("model_cnn.safetensors", "cnn:dropout=0", cnn_params(), cnn,
          images(1, 6, 1, 28, 28), labels(1, 10, 6),
          lambda p: torch.optim.Adam(values(p), lr=1e-3, eps=1e-6))
    train("model_gpt.safetensors", "gpt:layers=2,heads=2,width=16,context=12,vocab=31",
          gpt_params(2, 16, 12, 31), lambda p, x: gpt(p, x, 2, 2),
          labels(STEPS, 31, 4, 9), labels(STEPS, 31, 4, 9),
          lambda p: torch.optim.AdamW(
              [{"params": [t for t in values(p) if t.ndim >= 2], "weight_decay": 0.1},
               {"params": [t for t in values(p) if t.ndim < 2], "weight_decay": 0.0}],
              lr=1e-2, betas=(0.9, 0.99), eps=1e-6), clip=1.0)
    train("model_bn.safetensors", "", bn_params(), bn_net,
          images(STEPS, 16, 1, 8, 8), labels(STEPS, 5, 16),
          lambda p: torch.optim.SGD(values(p), lr=0.1, momentum=0.9),
          evaluate=lambda p, x: bn_net(p, x, training=False))
    train("model_resnet.safetensors", "resnet18:channels=1,width=%d" % RESNET_WIDTH,
          resnet_params(1, 10, RESNET_WIDTH), resnet,
          images(2, 8, 1, 28, 28), labels(2, 10, 8),
          lambda p: torch.optim.SGD(values(p), lr=1e-3, momentum=0.9),
          evaluate=lambda p, x: resnet(p, x, training=False))


main()
