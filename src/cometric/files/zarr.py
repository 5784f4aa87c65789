"""Checks of Zarr folders before they are read, see :mod:`cometric.files.stores`."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from cometric.files.hdf5 import check_size

ARRAYS = (".zarray", "zarr.json")
"""Files in which Zarr describes an array."""

METADATA = (*ARRAYS, ".zgroup", ".zattrs", ".zmetadata")
"""Files in which Zarr describes groups and arrays."""

INDEX_CODECS = ["bytes", "crc32c"]
"""How the index of a shard is written: numbers of 8 bytes, then a checksum of 4 bytes."""

ABSENT = 2**64 - 1
"""The place, in the index of a shard, of a chunk that it does not have."""


def check_zarr(path: Path, limit: float) -> None:
    """Raise if a Zarr folder has links, pickled objects, or chunks above the limit."""
    for folder, names, files in os.walk(path):
        for name in (*names, *files):
            place = Path(folder) / name
            if place.is_symlink():
                raise ValueError(
                    f"`{path}` has a link at '{place.relative_to(path)}', which may lead anywhere; "
                    "it is not read. Write the store without links."
                )
        for name in set(files) & set(METADATA):
            place = Path(folder) / name
            check_size(16.0 * place.stat().st_size, limit, path)
            text = place.read_text("utf-8")
            if "pickle" in text.lower() and name != ".zattrs":
                raise ValueError(f"`{path}` holds pickled objects, which could run code; not read.")
            described = json.loads(text)
            if isinstance(described, dict):
                chunks = _chunk_shape(described)
                if chunks and all(isinstance(size, int) for size in chunks):
                    check_size(8.0 * math.prod(chunks), limit, path)


def check_texts(folder: Path, path: Path) -> None:
    """Raise if a chunk of texts, in an array or in a group, says that it has more than its bytes.

    The library allocates memory for as many as it says, up to 2^32, before it looks for them.
    """
    for place in folder.rglob("*"):
        if place.name not in ARRAYS:
            continue
        described = json.loads(place.read_text("utf-8"))
        if isinstance(described, dict):
            _check_texts_of_array(place.parent, described, path)


def _check_texts_of_array(folder: Path, described: dict[str, Any], path: Path) -> None:
    steps = described.get("codecs") or described.get("filters") or []  # versions 3 and 2
    if described.get("compressor"):
        steps = [*steps, described["compressor"]]
    shape = _chunk_shape(described)
    for place in folder.rglob("*"):
        if place.name in METADATA or not place.is_file():
            continue
        for texts in _encoded_texts(place.read_bytes(), steps, shape):
            count = int.from_bytes(texts[:4], "little")
            if 4 * count > len(texts):  # each begins with its length, 4 bytes
                raise ValueError(f"{place.relative_to(path)} has fewer than its {count} texts")


def _chunk_shape(described: dict[str, Any]) -> Sequence[Any]:
    """The shape of the chunks of an array, each in a file; with shards that of the shards."""
    grid = described.get("chunk_grid", {})
    configuration = grid.get("configuration", {}) if isinstance(grid, dict) else {}
    shape: Sequence[Any] = described.get("chunks", configuration.get("chunk_shape", ()))
    return shape


def _encoded_texts(raw: bytes, steps: list[Any], shape: Sequence[int]) -> Iterator[bytes]:
    """The texts in a chunk of this shape, as encoded: one block, or one for each chunk in a shard.

    ``steps`` are the codecs that wrote it. Chunks of anything else have no such block.
    """
    from numcodecs import get_codec
    from numcodecs.errors import UnknownCodecError

    names = [step.get("name", step.get("id")) for step in steps]
    if names[:1] not in (["vlen-utf8"], ["sharding_indexed"]):
        return
    with suppress(UnknownCodecError):
        for name in reversed(names[1:]):
            raw = bytes(get_codec({"id": name}).decode(raw))
        if names[0] == "vlen-utf8":
            yield raw
            return
        inner = steps[0]["configuration"]
        for chunk in _chunks_of_shard(raw, inner, shape):
            yield from _encoded_texts(chunk, inner["codecs"], inner["chunk_shape"])


def _chunks_of_shard(raw: bytes, inner: dict[str, Any], shape: Sequence[int]) -> Iterator[bytes]:
    """The chunks in a shard of this shape; at one end it has an index of their places and sizes."""
    if [codec.get("name") for codec in inner["index_codecs"]] != INDEX_CODECS:
        raise ValueError("the index of its shards is in an unknown form")
    pairs = zip(shape, inner["chunk_shape"], strict=True)
    size = 16 * math.prod(whole // part for whole, part in pairs)
    if len(raw) < size + 4:
        raise ValueError("a shard is shorter than its index")
    start = 0 if inner.get("index_location") == "start" else len(raw) - size - 4
    index = memoryview(raw)[start : start + size].cast("Q")
    for first, length in zip(index[::2], index[1::2], strict=True):
        if first != ABSENT:
            yield raw[first : first + length]
