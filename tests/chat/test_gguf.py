"""GGUF files, as the package `gguf` writes and reads them."""

from __future__ import annotations

import runpy
import struct
from pathlib import Path

import numpy as np
import pytest
from support import tiny_models
from support.tiny_models import gguf

import opweave as ow
from opweave import DataError, MLError, NotSupportedError, composites
from opweave.chat import GGUF
from opweave.chat.gguf import FORMATS


def written(path: Path, name: str, rows: int = 3, columns: int = 512) -> np.ndarray:
    """Write a file with one random weight of a format, and return its blocks."""
    data = tiny_models.random_blocks(name, rows, columns, np.random.default_rng(1))
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_tensor("before", np.float32([1, 2, 3]))
    writer.add_tensor("w", data, raw_dtype=gguf.GGMLQuantizationType[name])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return data


QUANTIZED = [form.name for form in FORMATS.values() if form.blocks is not None]


@pytest.mark.parametrize("name", QUANTIZED)
def test_gguf_blocks_equal_package_gguf(name: str, tmp_path: Path) -> None:
    path = tmp_path / "x.gguf"
    data = written(path, name)
    weight = GGUF(path).weights["w"]
    wanted = gguf.dequantize(data, gguf.GGMLQuantizationType[name])
    assert (weight.shape, weight.format.name) == ((3, 512), name)
    np.testing.assert_allclose(weight.real(), wanted, rtol=1e-6, atol=1e-6)
    np.testing.assert_array_equal(weight.real(np.array([2, 0])), weight.real()[[2, 0]])
    blocks = weight.blocks()
    assert blocks is not None
    assert blocks.numbers.max() < 2**blocks.all_bits
    assert (blocks.minimum is not None) == (name in ("Q4_1", "Q5_1", "Q2_K", "Q4_K", "Q5_K"))
    assert blocks.for_cpu().bits == (4 if name in ("Q4_0", "Q4_1", "Q2_K", "Q3_K", "Q4_K") else 8)
    np.testing.assert_allclose(blocks.for_cpu().real(), wanted, rtol=1e-6, atol=1e-6 * np.abs(wanted).max())


@pytest.mark.parametrize("name", QUANTIZED)
def test_blocks_take_the_memory_of_the_file(name: str, tmp_path: Path) -> None:
    """As operands for GPUs; scales of float32 were float16, and IQ4_NL has levels of 8 bits instead of indices of 4."""
    path = tmp_path / "x.gguf"
    data = written(path, name)
    blocks = GGUF(path).weights["w"].blocks()
    assert blocks is not None
    arrays = [value for value in blocks.operands.values() if isinstance(value, np.ndarray)]
    size = sum(array.nbytes // 2 if array.dtype == np.float32 else array.nbytes for array in arrays)
    # Fields of 4 and 6 bits, which are scales of scales, become bytes.
    assert size <= data.nbytes * {"IQ4_NL": 2, "Q2_K": 1.2}.get(name, 1.13 if name.endswith("K") else 1)


@pytest.mark.parametrize("name", QUANTIZED)
@pytest.mark.parametrize("device", ["cpu", "reference"])
def test_products_of_formats_equal_dequantised_ones(name: str, device: str, tmp_path: Path) -> None:
    path = tmp_path / "x.gguf"
    data = written(path, name, rows=12)
    matrix = gguf.dequantize(data, gguf.GGMLQuantizationType[name]).astype(np.float64)
    blocks = GGUF(path).weights["w"].blocks()
    assert blocks is not None
    x = np.random.default_rng(3).standard_normal((2, 512)).astype(np.float32)
    with ow.ml.create_context(device=device):
        y = np.asarray(composites.matmul_n_bits(x, **blocks.operands))
        rows = np.asarray(composites.gather_n_bits(indices=np.int32([3, 0, -1]), width=512, **blocks.operands))
    wanted = x @ matrix.T
    np.testing.assert_allclose(y, wanted, rtol=1e-4, atol=1e-4 * np.abs(wanted).max())
    np.testing.assert_allclose(rows, matrix[[3, 0, -1]], rtol=1e-5, atol=1e-6 * np.abs(matrix).max())


def test_page_has_the_table_of_formats() -> None:
    """And formats take at most a fifth more on GPUs than in the file, but for the levels of IQ4_NL."""
    root = Path(__file__).parent.parent.parent
    table: str = runpy.run_path(str(root / "tools" / "gguf_formats.py"))["table"]()
    assert table in (root / "docs" / "chat.md").read_text()
    rows = [[cell.strip() for cell in line.split("|")[1:5]] for line in table.splitlines()[2:]]
    assert len(rows) == len(FORMATS)
    assert all(float(gpu) <= 1.2 * float(file) for name, file, _, gpu in rows if name != "IQ4_NL")


def test_gguf_maps_floats_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "x.gguf"
    values = np.random.default_rng(0).standard_normal((4, 8))
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_tensor("single", values.astype(np.float32))
    writer.add_tensor("half", values.astype(np.float16))
    bits = gguf.quantize(values.astype(np.float32), gguf.GGMLQuantizationType.BF16)
    writer.add_tensor("brain", bits, raw_dtype=gguf.GGMLQuantizationType.BF16)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    file = GGUF(path)
    single = file.weights["single"].real()
    np.testing.assert_array_equal(single, values.astype(np.float32))
    assert not single.flags.owndata
    assert not single.flags.writeable
    np.testing.assert_array_equal(file.weights["half"].real(), values.astype(np.float16).astype(np.float32))
    assert file.weights["half"].blocks() is None
    wanted = gguf.dequantize(bits, gguf.GGMLQuantizationType.BF16)
    np.testing.assert_array_equal(file.weights["brain"].real(), wanted)
    assert file.weights["brain"].blocks() is None


def test_metadata_of_all_types(tmp_path: Path) -> None:
    path = tmp_path / "x.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    wanted = {
        "uint8": 200, "int8": -3, "uint16": 60_000, "int16": -300, "uint32": 2**31, "int32": -70_000,
        "uint64": 2**40, "int64": -(2**40), "float32": 0.5, "float64": 0.1, "bool": True, "string": "größer",
    }  # fmt: skip
    for kind, value in wanted.items():
        getattr(writer, f"add_{kind}")(f"a.{kind}", value)
    writer.add_array("a.strings", ["", "ein", "Größe"])
    writer.add_array("a.floats", [0.5, 1.5])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    found = GGUF(path).metadata
    assert {kind: found[f"a.{kind}"] for kind in wanted} == wanted
    assert found["general.architecture"] == "llama"
    assert found["a.strings"] == ["", "ein", "Größe"]
    assert found["a.floats"].tolist() == [0.5, 1.5]


def entry(name: str, kind: int, data: bytes) -> bytes:
    return struct.pack("<Q", len(name)) + name.encode() + struct.pack("<I", kind) + data


def tensor(name: str, sizes: list[int], kind: int = 0, at: int = 0) -> bytes:
    packed = struct.pack(f"<{len(sizes)}Q", *sizes)
    return (
        struct.pack("<Q", len(name))
        + name.encode()
        + struct.pack("<I", len(sizes))
        + packed
        + struct.pack("<IQ", kind, at)
    )


def count(number: int, kind: int = 4) -> bytes:
    return struct.pack("<IQ", kind, number)


@pytest.mark.parametrize(
    ("entries", "tensors", "message"),
    [
        ([entry("a", 4, bytes(4))] * 2, [], "two entries of the metadata have the name 'a'"),
        ([entry("a", 13, bytes(8))], [], "there is no type 13 of metadata"),
        ([entry("a", 9, count(2, 9))], [], "arrays of arrays are not read"),
        ([entry("a", 9, count(2**62))], [], "bytes are wanted"),
        ([entry("a", 9, count(2**62, 8))], [], "is damaged or ends too early"),
        ([entry("a", 9, count(1, 8) + struct.pack("<Q", 100) + b"abc")], [], "a string of 100 bytes ends at byte"),
        ([entry("a", 9, count(1, 8) + struct.pack("<Q", 2**63))], [], "a string of 9223372036854775808 bytes"),
        ([entry("general.alignment", 4, bytes(4))], [], "general.alignment must be a positive multiple of 8, got 0"),
        (
            [entry("general.alignment", 4, b"\x09\0\0\0")],
            [],
            "general.alignment must be a positive multiple of 8, got 9",
        ),
        ([entry("general.alignment", 7, b"\1")], [], "general.alignment must be a positive multiple of 8, got True"),
        ([entry("general.alignment", 6, bytes(4))], [], "general.alignment must be a positive multiple of 8, got 0.0"),
        ([entry("general.alignment", 8, bytes(8))], [], "general.alignment must be a positive multiple of 8, got ''"),
        ([], [tensor("w", [4])] * 2, "two tensors have the name 'w'"),
        ([], [tensor("w", [0])], r"'w' must have dimensions in \[1, 2147483647\], got \[0\]"),
        ([], [tensor("w", [4, 0])], r"'w' must have dimensions in \[1, 2147483647\], got \[0, 4\]"),
        ([], [tensor("w", [2**63, 2])], r"'w' must have dimensions in \[1, 2147483647\], got"),
        ([], [tensor("w", [2**31 - 1] * 4)], "bytes are wanted"),
        ([], [tensor("w", [])], r"'w' must have a rank in \[1, 4\], got 0"),
        ([], [tensor("w", [1] * 5)], r"'w' must have a rank in \[1, 4\], got 5"),
        ([], [tensor("w", [32], 2)], r"'w' must have a rank of 2, since it is Q4_0, got \[32\]"),
        ([], [tensor("w", [31, 2], 2)], "rows of 'w' have 31 elements, not a multiple of 32"),
        ([], [tensor("w", [4], at=2**63)], "bytes are wanted"),
    ],
)
def test_gguf_rejects_damaged_parts(entries: list[bytes], tensors: list[bytes], message: str, tmp_path: Path) -> None:
    path = tmp_path / "x.gguf"
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(entries))
    path.write_bytes(head + b"".join([*entries, *tensors]) + bytes(64 if "ends" not in message else 0))
    with pytest.raises(DataError, match=message):
        GGUF(path)


def test_gguf_rejects_truncated_file(tmp_path: Path) -> None:
    path, cut = tmp_path / "x.gguf", tmp_path / "cut.gguf"
    written(path, "Q4_0", columns=32)
    whole = path.read_bytes()
    for length in range(0, GGUF(path).weights["w"].data.nbytes + len(whole) // 2, 3):
        cut.write_bytes(whole[:length])
        with pytest.raises(DataError):
            GGUF(cut)


def test_gguf_reads_or_rejects_random_bytes(tmp_path: Path) -> None:
    """Sizes and counts may be anything."""
    path, other = tmp_path / "x.gguf", tmp_path / "other.gguf"
    written(path, "Q4_0", columns=32)
    whole = bytearray(path.read_bytes())
    random, refused = np.random.default_rng(3), 0
    for _ in range(300):
        data = whole.copy()
        data[random.integers(4, 200)] = random.integers(256)
        other.write_bytes(data)
        try:
            GGUF(other)
        except MLError:
            refused += 1
    assert refused > 100


def test_gguf_missing_file(tmp_path: Path) -> None:
    for name, hint in (("none.gguf", ""), ("none", "; the path of a .gguf file is needed")):
        with pytest.raises(DataError) as caught:
            GGUF(tmp_path / name)
        assert str(caught.value) == f"{tmp_path / name}: No such file or directory{hint}"


def test_gguf_rejects_unsupported_format(tmp_path: Path) -> None:
    path = tmp_path / "x.gguf"
    written(path, "TQ2_0")
    with pytest.raises(NotSupportedError, match=r"w is TQ2_0; F32, F16, Q4_0, .*, IQ4_NL, BF16 are read"):
        GGUF(path)
    path.write_bytes(b"GGUF" + b"\1\0\0\0" + bytes(40))
    with pytest.raises(NotSupportedError, match="of version 1; 2 and 3 are read"):
        GGUF(path)
    path.write_bytes(b"PK\3\4" + bytes(40))
    with pytest.raises(DataError, match=r"x\.gguf is no GGUF file: it begins with b'PK"):
        GGUF(path)
