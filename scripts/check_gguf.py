#!/usr/bin/env python3
"""check_gguf.py F32.gguf [OTHER.gguf …]: reads files that `sherd export --gguf` made of one model with the `gguf` package.

The others, of other types, must hold what the package itself makes of the first one's numbers, byte for byte. Ends with 1 at the
first difference.
"""
import pathlib
import sys

import gguf
import numpy

from gguf import GGMLQuantizationType as Type


def read(path: str) -> tuple[dict, dict]:
    """The fields and tensors of a file, by name."""
    reader = gguf.GGUFReader(path)
    fields = {name: field.contents() for name, field in reader.fields.items() if not name.startswith("GGUF.")}
    return fields, {tensor.name: tensor for tensor in reader.tensors}


def as_bytes(tensor) -> bytes:
    return numpy.ascontiguousarray(tensor.data).tobytes()


def check_other(path: str, fields: dict, tensors: dict) -> None:
    other_fields, others = read(path)
    differ = [name for name in fields | other_fields
              if fields.get(name) != other_fields.get(name) and name not in ("general.file_type", "general.name")]
    if differ or tensors.keys() != others.keys():
        sys.exit(f"{path}: other fields or tensors: {differ or tensors.keys() ^ others.keys()}")
    numbers = 0
    for name, tensor in others.items():
        values = gguf.quants.dequantize(tensors[name].data, tensors[name].tensor_type).astype(numpy.float32)
        expected = values if tensor.tensor_type == Type.F32 else gguf.quants.quantize(values, tensor.tensor_type)
        if as_bytes(tensor) != numpy.ascontiguousarray(expected).tobytes():
            sys.exit(f"{path}: {name} ({tensor.tensor_type.name}) differs")
        numbers += values.size
    types = sorted({tensor.tensor_type.name for tensor in others.values()})
    print(f"{pathlib.Path(path).name}: {len(others)} tensors, {numbers} numbers as {', '.join(types)}: the package's own bytes")


def main() -> None:
    fields, tensors = read(sys.argv[1])
    if any(tensor.tensor_type != Type.F32 for tensor in tensors.values()):
        sys.exit(f"{sys.argv[1]}: is not of F32")
    print(f"{pathlib.Path(sys.argv[1]).name}: {len(fields)} fields, {len(tensors)} tensors")
    for path in sys.argv[2:]:
        check_other(path, fields, tensors)


if __name__ == "__main__":
    main()
