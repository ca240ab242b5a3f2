"""One thread: other tests run beside these, and results are bit-equal only for a given number."""

from __future__ import annotations

import torch

torch.set_num_threads(1)
