"""What type checkers and editors infer; run by mypy alone."""

from typing import Any, assert_type

import numpy as np
import numpy.typing as npt

from nbshare import Job, SharedArray, SharedObject, map_async, parallel_map, share

plain: npt.NDArray[np.float64] = np.zeros(3)

assert_type(share(plain), SharedArray)
assert_type(share({"a": 1}), dict[str, int])
assert_type(share(plain, wrap=True), SharedObject)

results = parallel_map(abs, [1], retries=1)  # an array, or a list
assert_type(results, SharedArray | Any)
assert_type(results.mean(), Any)
as_list: list[int] = parallel_map(abs, [1], out="list")
print(results.nonsense)  # type: ignore[union-attr]
assert_type(parallel_map(abs, [1], out="list", on_error="return"), list[Any])
assert_type(parallel_map(divmod, [1], [2], out="stack"), tuple[Any, ...])
assert_type(parallel_map(abs, [1, 2, 3], out=plain, plot="line"), npt.NDArray[np.float64])
assert_type(parallel_map(abs, [1], on_error="return"), Any)  # masked, or a list
assert_type(map_async(abs, [1], progress="all", detach=False), Job)

parallel_map(abs, [1], max_workers="two")  # type: ignore[call-overload]
parallel_map(abs, [1], n_jobs=2)  # type: ignore[call-overload]
map_async(abs, [1], n_jobs=2)  # type: ignore[call-arg]
