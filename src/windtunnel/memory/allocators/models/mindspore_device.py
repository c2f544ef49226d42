"""The device under MindSpore's pool: where blocks come from.

CarvedDevice: blocks cut from the top of device memory downwards; a newer block lies lower
PagedDevice:  `enable_vmm`: addresses are plenty, physical pages are mapped and unmapped
"""

from __future__ import annotations

from typing import Literal

__all__ = ["CarvedDevice", "PagedDevice"]

FIRST_ADDRESS = 1 << 44
PLENTY_BYTES = 1 << 44  # of addresses, when the device has no limit


class CarvedDevice:
    """Plain device memory."""

    is_paged: Literal[False] = False
    physical_bytes = 0  # only pages are counted here; the pool counts what it touched of a block

    def __init__(self, device_bytes: int | None) -> None:
        self.device_bytes = device_bytes
        self._bottom = FIRST_ADDRESS + (PLENTY_BYTES if device_bytes is None else device_bytes)
        self._taken_bytes = 0

    @property
    def free_bytes(self) -> int | None:
        return None if self.device_bytes is None else self.device_bytes - self._taken_bytes

    def take(self, n_bytes: int) -> tuple[int, int]:
        """Return the address and the size of a new block."""
        self._bottom -= n_bytes
        self._taken_bytes += n_bytes
        return self._bottom, n_bytes

    def give_back(self, n_bytes: int) -> None:
        self._taken_bytes -= n_bytes


class PagedDevice:
    """Virtual memory. An unmapped page keeps its physical page in a cache, to be mapped elsewhere."""

    is_paged: Literal[True] = True

    def __init__(self, device_bytes: int | None, page_bytes: int) -> None:
        self.device_bytes = device_bytes
        self.page_bytes = page_bytes
        self._top = FIRST_ADDRESS
        self._mapped: set[int] = set()
        self._n_physical = 0

    @property
    def physical_bytes(self) -> int:
        return self._n_physical * self.page_bytes

    @property
    def free_bytes(self) -> int | None:
        return None if self.device_bytes is None else self.device_bytes - len(self._mapped) * self.page_bytes

    def take(self, n_bytes: int) -> tuple[int, int]:
        address = self._top
        n_bytes = max(n_bytes, PLENTY_BYTES if self.device_bytes is None else self.device_bytes)
        self._top += -(-n_bytes // self.page_bytes) * self.page_bytes
        return address, n_bytes

    def map(self, address: int, n_bytes: int) -> bool:
        """Back a range with pages; False, and nothing mapped, when the device has too few."""
        first, last = address // self.page_bytes, -(-(address + n_bytes) // self.page_bytes)
        missing = [page for page in range(first, last) if page not in self._mapped]
        n_mapped = len(self._mapped) + len(missing)
        if self.device_bytes is not None and n_mapped * self.page_bytes > self.device_bytes:
            return False
        self._mapped.update(missing)
        self._n_physical = max(self._n_physical, n_mapped)
        return True

    def unmap(self, address: int, n_bytes: int) -> None:
        """Unmap the pages that lie wholly inside a range."""
        first, last = -(-address // self.page_bytes), (address + n_bytes) // self.page_bytes
        if last - first > len(self._mapped):
            self._mapped = {page for page in self._mapped if not first <= page < last}
        else:
            self._mapped.difference_update(range(first, last))

    def drop_cached_pages(self) -> None:
        self._n_physical = len(self._mapped)
