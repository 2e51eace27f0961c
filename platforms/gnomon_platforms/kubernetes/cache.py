"""The objects of one kind as they are now: a dictionary with an index by labels, and what each piece of news changes in it.

An object is the same as long as its uid is: one that was removed and made again under its name is told as gone and as new, even
where a watch has shown only the new one. News of a version that is held already changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

T = TypeVar("T")

Name = tuple[str, str]
"""Namespace, empty for objects without one, and name."""


@dataclass(frozen=True, slots=True)
class Item(Generic[T]):
    """One object: what identifies it, the labels that are looked up, and what is kept of it."""

    name: Name
    uid: str
    resource_version: str
    labels: Mapping[str, str]
    value: T


@dataclass(frozen=True, slots=True)
class Change(Generic[T]):
    """What has become of an object: new without an old value, gone without a new one."""

    name: Name
    old: T | None
    new: T | None


class Reader(Generic[T]):
    """Makes items of documents: `keep` says what is kept of one, `index` which labels are looked up."""

    def __init__(self, keep: Callable[[dict[str, Any]], T], index: Sequence[str] = ()) -> None:
        self._keep = keep
        self._index = index

    def identity(self, document: dict[str, Any]) -> Item[None]:
        """Which object this is.

        Raises ValueError for what is no object.
        """
        try:
            metadata = document["metadata"]
            labels = metadata.get("labels") or {}
            return Item(
                (metadata.get("namespace", ""), metadata["name"]),
                metadata["uid"],
                metadata["resourceVersion"],
                {label: labels[label] for label in self._index if label in labels},
                None,
            )
        except (KeyError, TypeError, AttributeError) as error:
            msg = f"an object without {error}"
            raise ValueError(msg) from error

    def item(self, document: dict[str, Any]) -> Item[T]:
        """An object as the API server sends it, with what is kept of it.

        Raises ValueError for what cannot be read.
        """
        known = self.identity(document)
        try:
            value = self._keep(document)
        except Exception as error:
            # Anybody may write into an object: what is in it must cost nobody else's.
            msg = f"{'/'.join(known.name)} cannot be read: {type(error).__name__}: {error}"
            raise ValueError(msg) from error
        return Item(known.name, known.uid, known.resource_version, known.labels, value)


class Cache(Generic[T]):
    """The dictionary. It is used by one thread, the event loop's."""

    def __init__(self) -> None:
        self._items: dict[Name, Item[T]] = {}
        self._by_label: dict[tuple[str, str], dict[Name, Item[T]]] = {}

    def __len__(self) -> int:
        return len(self._items)

    def get(self, namespace: str, name: str) -> T | None:
        item = self._items.get((namespace, name))
        return None if item is None else item.value

    def values(self) -> tuple[T, ...]:
        return tuple(item.value for item in self._items.values())

    def changes(self) -> list[Change[T]]:
        """What is held, as if it had just come."""
        return [Change(item.name, None, item.value) for item in self._items.values()]

    def labelled(self, label: str, value: str) -> tuple[T, ...]:
        """The objects that have an indexed label with this value."""
        return tuple(item.value for item in self._by_label.get((label, value), {}).values())

    def replace(self, items: Iterable[Item[T]]) -> list[Change[T]]:
        """This is all there is now."""
        listed = {item.name: item for item in items}
        gone = [self._items[name] for name in self._items.keys() - listed.keys()]
        changes = [change for item in gone for change in self.remove(item)]
        return changes + [change for item in listed.values() for change in self.put(item)]

    def put(self, item: Item[T]) -> list[Change[T]]:
        """This is there, as it says."""
        held = self._items.get(item.name)
        if held is not None and held.uid == item.uid and held.resource_version == item.resource_version:
            return []
        changes = [] if held is None or held.uid == item.uid else self.remove(held)
        old = None if held is None or changes else held.value
        if held is not None:
            self._unlabel(held)
        self._items[item.name] = item
        for pair in item.labels.items():
            self._by_label.setdefault(pair, {})[item.name] = item
        return [*changes, Change(item.name, old, item.value)]

    def remove(self, item: Item[Any]) -> list[Change[T]]:
        """This is gone. News of the end of one that has a successor already changes nothing."""
        held = self._items.get(item.name)
        if held is None or held.uid != item.uid:
            return []
        self._unlabel(held)
        del self._items[item.name]
        return [Change(item.name, held.value, None)]

    def _unlabel(self, item: Item[T]) -> None:
        for pair in item.labels.items():
            bucket = self._by_label.get(pair)
            if bucket is not None:
                bucket.pop(item.name, None)
                if not bucket:
                    del self._by_label[pair]
