"""Values of other packages whose pickles differ although the values are equal."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

TENSORS = {
    "Tensor",
    "Parameter",
    "Buffer",
}  # classes of torch. Other subclasses have attributes


def parts_in(value: Any, kind: type) -> list[Any] | None:
    """Return the parts of a value to compare, or None if its pickle suffices."""
    package = kind.__module__.partition(".")[0]
    if package == "pandas" and kind.__name__ == "DataFrame":
        # Not its blocks, because they depend on how the frame was made.
        columns = [column.array for _, column in value.items()]
        flags = value.flags.allows_duplicate_labels
        return [value.columns, value.index, value.attrs, flags, *columns]
    if package == "torch":
        return _parts_in_torch(value, kind)
    return None


def _parts_in_torch(value: Any, kind: type) -> list[Any] | None:
    """Return the parts of a tensor or a storage, whose pickles contain addresses."""
    torch = sys.modules["torch"]
    if kind.__module__ == "torch.storage":
        raw = getattr(value, "_untyped_storage", value)
        data = torch.empty(0, dtype=torch.uint8).set_(raw.cpu())
        return [kind, str(getattr(value, "dtype", "")), str(raw.device), np.asarray(data)]
    if not isinstance(value, torch.Tensor) or value.layout is not torch.strided:
        return None
    if kind.__name__ not in TENSORS or value.is_quantized or value.device.type == "meta":
        return None
    # Not the storage, because the tensor may be a small part of it.
    plain = value.detach().cpu().resolve_conj().resolve_neg().contiguous()
    data = np.asarray(plain.reshape(-1).view(torch.uint8))
    about = [str(value.dtype), str(value.device), tuple(value.shape), value.requires_grad]
    return [kind, *about, vars(value), data]
