"""What a node leaves is coded, and the next node trains what it decodes; so does the node itself if the model stays.

The file that travels is the file that is stored, so every trained round goes through the codec, also where the model
stays. The reference is w_0 with the optimiser's first state, which is all zeros: carried state is coded as it is.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from tramfl.config import Codec
from tramfl.learning.model.codec import (
    DITHER_BYTES,
    Coded,
    Floats,
    code,
    coded_bytes,
    decode,
    dither,
    dither_key,
    is_coded,
)
from tramfl.learning.model.coded_files import DITHER, SCALES
from tramfl.learning.model.cost import bits_of
from tramfl.learning.model.weights import State, check_fit
from tramfl.notation import BadInput

CodedState = dict[str, Coded]
"""The coded tensors of a model by name, with what their dither follows from."""


class TransitCoder:
    """Codes and decodes the models of one run."""

    def __init__(self, codec: Codec, seed: int, reference: Mapping[str, Tensor]) -> None:
        """`reference` has every tensor that travels."""
        self.codec, self._seed = codec, seed
        coded = {name: tensor for name, tensor in reference.items() if codec != "float32" and _is_coded(tensor)}
        self._reference: dict[str, Floats] = {name: _array(tensor).copy() for name, tensor in coded.items()}
        plain = bits_of(reference.values())
        saved = sum(8 * (tensor.nbytes - coded_bytes(tensor.shape, codec)) for tensor in coded.values())
        self.bits = plain - saved + (0 if codec == "float32" else 8 * DITHER_BYTES)
        """D_M: what a model on its way takes."""
        self.ratio = self.bits / plain if plain else 1.0
        """The same over what it takes as float32."""

    def use_reference(self, state: State) -> None:
        """Code against another reference from now on: another site of the run may have drawn other first weights."""
        own = {name: torch.from_numpy(values) for name, values in self._reference.items()}
        check_fit(own, {name: tensor for name, tensor in state.items() if name in own}, "the reference")
        self._reference = {name: _array(state[name]).copy() for name in own}

    def through(self, tensors: Mapping[str, Tensor], round_: int) -> CodedState:
        """Code the weights after a round, and change each tensor to what its coded form decodes to."""
        if self.codec == "float32":
            return {}
        coded = self._begun(round_)
        v = dither(coded[DITHER].values)
        for name, reference in self._reference.items():
            tensor = tensors[name]
            values = _array(tensor)
            coded[name] = code(values, reference, self.codec, v)
            decode(coded[name], reference, self.codec, v, values)
            if values.ctypes.data != tensor.data_ptr():
                tensor.copy_(torch.from_numpy(values))
        return coded

    def unchanged(self) -> CodedState:
        """The coded form of the reference itself."""
        if self.codec == "float32":
            return {}
        coded = self._begun(0)
        v = dither(coded[DITHER].values)
        return coded | {name: code(values, values, self.codec, v) for name, values in self._reference.items()}

    def _begun(self, round_: int) -> CodedState:
        return {DITHER: Coded(dither_key(self._seed, round_), None)}

    def packed(self, state: Mapping[str, Tensor], coded: CodedState) -> State:
        """A model's tensors as a coded file has them."""
        found = dict(state)
        for name, tensor in coded.items():
            found[name] = torch.from_numpy(tensor.values)
            if tensor.scales is not None:
                found[SCALES + name] = torch.from_numpy(tensor.scales)
        return found

    def unpacked(self, state: State) -> tuple[State, CodedState]:
        """The decoded tensors of a coded file, and their coded form. BadInput where they do not fit."""
        found = dict(state)
        if DITHER not in found:
            raise BadInput("the coded weights do not say which dither they have.")
        coded = {DITHER: Coded(found.pop(DITHER).numpy(), None)}
        v = dither(coded[DITHER].values)
        for name, reference in self._reference.items():
            if name not in found:
                continue  # the caller reports what is missing
            scales = found.pop(SCALES + name, None)
            coded[name] = Coded(found[name].numpy(), None if scales is None else scales.numpy())
            values = np.empty_like(reference)
            decode(coded[name], reference, self.codec, v, values)
            found[name] = torch.from_numpy(values)
        return found, coded


def _is_coded(tensor: Tensor) -> bool:
    return is_coded(tensor.shape, float32=tensor.dtype == torch.float32)


def _array(tensor: Tensor) -> Floats:
    """The values in row-major order; the tensor's own memory where it has that order and is the processor's."""
    array: Floats = tensor.detach().cpu().contiguous().numpy()
    return array
