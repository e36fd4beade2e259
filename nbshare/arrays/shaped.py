"""Items that say how a function takes one of them, and what form all results have."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any


class ShapedItems(Sequence[Any]):
    """Items that are made when they are needed, such as the combinations of a grid.

    Workers get them as a whole, and make those that they run.
    """

    @abstractmethod
    def taken_by(
        self, func: Callable[..., Any], shared: Mapping[str, Any], extra: Sequence[str]
    ) -> Callable[..., Any]:
        """Return a function of one item that calls the user's.

        Parameters
        ----------
        func : callable
            The user's.
        shared : mapping
            The objects of ``shared=``, which it gets by name.
        extra : sequence of str
            Names of other arguments that it gets.

        Raises
        ------
        TypeError
            It does not take these items.
        """

    @abstractmethod
    def shaped(self, results: Any) -> Any:
        """Return the results of all items in their final form.

        Parameters
        ----------
        results : array, list or tuple of arrays
            One result for each item.
        """

    def shaped_partly(self, results: Any) -> Any:
        """Return the results so far, an array or a list with gaps, in the form that they have."""
        return results
