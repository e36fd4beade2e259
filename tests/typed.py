"""Inferences of type checkers and editors, run by mypy alone."""

from typing import Any, assert_type

import numpy as np
import numpy.typing as npt

from nbshare import Checkpoint, Job, SharedArray, SharedObject, map_async, parallel_map, share

plain: npt.NDArray[np.float64] = np.zeros(3)

assert_type(share(plain), SharedArray)
assert_type(share({"a": 1}), dict[str, int])
assert_type(share(plain, wrap=True), SharedObject)


def root(x: int) -> complex:
    """Have a type of result of its own."""
    return complex(x)


results = parallel_map(root, [1], retries=1)  # an array, or a list
assert_type(results, SharedArray | Any)
mean: float = results.mean()
assert_type(parallel_map(root, [1], out="list"), list[complex])
as_list: list[int] = parallel_map(abs, [1], out="list")
named = parallel_map("workers.py:horizon", [1], out="list")
assert_type(named, list[Any])
print(results.nonsense)  # type: ignore[union-attr]
assert_type(parallel_map(root, [1], out="list", on_error="return"), Any)  # with exceptions
assert_type(parallel_map(divmod, [1], [2], out="stack"), Any)
assert_type(parallel_map(abs, [1, 2, 3], out=plain, plot=["line", "hist"]), Any)
assert_type(parallel_map(abs, [1], on_error="return"), Any)  # masked, or a list
job = map_async(root, [1], progress="all", detach=False)
assert_type(job, Job[complex])
assert_type(job.result(), SharedArray | Any)
assert_type(job.debug(0), complex)
for i, value in job:
    assert_type((i, value), tuple[int, complex])
any_job: Job = map_async("workers.py:horizon", [1])
stored = Checkpoint("run", if_changed="restart")
parallel_map(abs, [1], checkpoint=stored)

parallel_map(abs, [1], max_workers="two")  # type: ignore[call-overload]
parallel_map(abs, [1], n_jobs=2)  # type: ignore[arg-type]
parallel_map(abs, [1], plot="lines")  # type: ignore[arg-type]
map_async(abs, [1], n_jobs=2)  # type: ignore[call-arg]
map_async(abs, [1], plot="lines")  # type: ignore[arg-type]
Checkpoint("run", if_changed="anew")  # type: ignore[arg-type]
