"""What coding a ResNet-18 costs, beside sending it: `python benchmarks/codec.py [--numpy]`.

For each codec: bytes of the coded tensors over those of float32, and processor seconds to code and decode all of
them on one core over the seconds that the coded file takes at 1 Gbit/s. The best of several turns counts, since other
work on the machine only adds to it. Goal: 0.26 (int8) and 0.135 (int4) of the bytes, and a quarter of the time. The
line above the table is the floor: what it takes to read weights and reference once, and to read and write once more.
Where numba is installed it does the loops of int8 and int4; --numpy measures NumPy's all the same.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence

import numpy as np
import torch

from tramfl.config import Codec
from tramfl.learning.model.codec import (
    BLOCK,
    Floats,
    code,
    coded_bytes,
    decode,
    dither,
    dither_key,
    is_coded,
    loops,
)
from tramfl.learning.model.networks import build_network

GIGABIT = 1e9
TURNS = 40
CODECS: tuple[Codec, ...] = ("float16", "int8", "int4")


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--numpy", action="store_true", help="as if numba were not installed")
    if parser.parse_args().numpy:
        sys.modules["numba"] = None  # type: ignore[assignment]
    torch.set_num_threads(1)
    network = build_network("resnet18", classes=10, input_shape=(3, 48, 48), weights=None, seed=0, own=None)
    state = [tensor.numpy() for tensor in network.state_dict().values()]
    reference = [array for array in state if is_coded(array.shape, float32=array.dtype == np.float32)]
    rest = sum(array.nbytes for array in state) - sum(array.nbytes for array in reference)
    rng = np.random.default_rng(0)
    weights = [array + np.float32(0.001) * rng.standard_normal(array.shape, dtype=np.float32) for array in reference]
    out = [np.empty_like(array) for array in reference]
    whole = sum(array.nbytes for array in state)
    print(f"ResNet-18: {whole / 1e6:.1f} MB of weights, of which {rest / 1e3:.0f} kB travel as they are")
    print(f"loops of int8 and int4: {loops(True)[0].__module__}\n")
    least = 1000 * floor(weights, reference, out)
    print(f"reading weights and reference, and a copy of the reference: {least:.1f} ms\n")
    print("| codec | bytes, of float32 | code, ms | decode, ms | send at 1 Gbit/s, ms | code and decode over send |")
    print("|---|---|---|---|---|---|")
    for codec in CODECS:
        size = rest + sum(coded_bytes(array.shape, codec) for array in reference)
        coding, decoding = [], []
        for turn in range(TURNS):
            began = time.process_time()
            v = dither(dither_key(0, turn))
            coded = [code(w, r, codec, v) for w, r in zip(weights, reference, strict=True)]
            coding.append(time.process_time() - began)
            began = time.process_time()
            for tensor, base, target in zip(coded, reference, out, strict=True):
                decode(tensor, base, codec, v, target)
            decoding.append(time.process_time() - began)
        sending = 8 * size / GIGABIT
        ratio = (min(coding) + min(decoding)) / sending
        times = " | ".join(f"{1000 * seconds:.1f}" for seconds in (min(coding), min(decoding), sending))
        print(f"| {codec} | {size / whole:.4f} | {times} | {ratio:.3f} |")


def floor(weights: Sequence[Floats], reference: Sequence[Floats], out: Sequence[Floats]) -> float:
    """Seconds to touch the same memory with one operation for each: a difference that stays in cache, and a copy."""
    room, seconds = np.empty(BLOCK, np.float32), []
    for _ in range(TURNS):
        began = time.process_time()
        for w, r, target in zip(weights, reference, out, strict=True):
            one, other, to = w.reshape(-1), r.reshape(-1), target.reshape(-1)
            for first in range(0, w.size, BLOCK):
                part = slice(first, first + BLOCK)
                np.subtract(one[part], other[part], out=room[: len(one[part])])
            for first in range(0, w.size, BLOCK):
                part = slice(first, first + BLOCK)
                np.copyto(to[part], other[part])
        seconds.append(time.process_time() - began)
    return min(seconds)


if __name__ == "__main__":
    main()
