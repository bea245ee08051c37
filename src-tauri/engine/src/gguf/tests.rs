use std::path::Path;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use tempfile::tempdir;

use super::testing::{GgufBuilder, string, string_bytes, strings};
use super::*;

/// Two tensors, one of them quantized, and a key of every kind.
fn small() -> GgufBuilder {
    GgufBuilder::default()
        .pair("general.architecture", string("llama"))
        .pair("a.u8", Value::U8(8))
        .pair("a.i8", Value::I8(-8))
        .pair("a.u16", Value::U16(16))
        .pair("a.i16", Value::I16(-16))
        .pair("a.u32", Value::U32(32))
        .pair("a.i32", Value::I32(-32))
        .pair("a.u64", Value::U64(u64::MAX))
        .pair("a.i64", Value::I64(-64))
        .pair("a.f32", Value::F32(0.5))
        .pair("a.f64", Value::F64(0.25))
        .pair("a.bool", Value::Bool(true))
        .pair("a.strings", strings(["x", "yy"]))
        .pair("a.i32s", Value::Array(Array::I32(vec![1, -2])))
        .pair("a.f32s", Value::Array(Array::F32(vec![1.5, -2.5])))
        .pair("a.bools", Value::Array(Array::Bool(vec![true, false])))
        .pair(
            "a.nested",
            Value::Array(Array::Array(vec![
                Array::U8(vec![1]),
                Array::U8(vec![2, 3]),
            ])),
        )
        .tensor("one", 0, &[2, 3], &floats(6))
        .tensor("two", 8, &[2, 32], &[7; 68])
}

fn floats(n: usize) -> Vec<u8> {
    (0..n).flat_map(|i| (i as f32).to_le_bytes()).collect()
}

fn open_bytes(bytes: &[u8]) -> Result<GgufFile> {
    let folder = tempdir().unwrap();
    let path = folder.path().join("m.gguf");
    std::fs::write(&path, bytes).unwrap();
    GgufFile::open(&path)
}

/// Opens a file that must be refused; every message names the file.
fn refused(bytes: &[u8]) -> String {
    let message = open_bytes(bytes).expect_err("must be refused").to_string();
    assert!(message.contains("m.gguf"), "{message}");
    message
}

#[track_caller]
fn assert_mentions(message: &str, words: &[&str]) {
    for word in words {
        assert!(message.contains(word), "{word:?} is not in: {message}");
    }
}

#[test]
fn reads_what_was_written() {
    for version in [2, 3] {
        let mut builder = small();
        builder.version = version;
        let file = open_bytes(&builder.build()).unwrap();
        assert_eq!(file.version(), version);
        let tensors: Vec<_> = file.tensors().map(TensorInfo::name).collect();
        assert_eq!(tensors, ["one", "two"]);

        let one = file.tensor("one").unwrap();
        assert_eq!((one.shape(), one.ggml_type()), (&[2, 3][..], GgmlType::F32));
        assert_eq!((one.element_count(), one.byte_count()), (6, 24));
        assert_eq!(file.data(one), floats(6));
        assert_eq!(one.byte_range().start % 32, 0);
        let two = file.tensor("two").unwrap();
        assert_eq!(two.ggml_type(), GgmlType::Q8_0);
        assert_eq!(file.data(two), [7; 68]);
        assert!(file.tensor("three").is_none());
        assert_eq!(file.shards().collect::<Vec<_>>(), [file.path()]);
    }
}

#[test]
fn typed_getters_convert_widths_and_name_the_key() {
    let file = open_bytes(&small().build()).unwrap();
    let meta = file.metadata();
    assert_eq!(meta.len(), 17);
    assert_eq!(meta.iter().next().unwrap().0, "general.architecture");
    assert_eq!(meta.require_str("general.architecture").unwrap(), "llama");
    for (key, value) in [
        ("a.u8", 8),
        ("a.u16", 16),
        ("a.u32", 32),
        ("a.u64", u64::MAX),
    ] {
        assert_eq!(meta.get_u64(key).unwrap(), Some(value), "{key}");
    }
    assert_eq!(meta.get_f32("a.f64").unwrap(), Some(0.25));
    assert_eq!(meta.get_f64("a.f32").unwrap(), Some(0.5));
    assert_eq!(meta.get_f64("a.i16").unwrap(), Some(-16.0));
    assert_eq!(meta.get_bool("a.bool").unwrap(), Some(true));
    assert_eq!(
        meta.get_array_str("a.strings").unwrap().unwrap(),
        ["x", "yy"]
    );
    assert_eq!(meta.get_array_i32("a.i32s").unwrap().unwrap(), [1, -2]);
    assert_eq!(meta.get_array_f32("a.f32s").unwrap().unwrap(), [1.5, -2.5]);
    assert_eq!(meta.get_array_f32("a.i32s").unwrap().unwrap(), [1.0, -2.0]);
    assert_eq!(
        meta.get_array_bool("a.bools").unwrap().unwrap(),
        [true, false]
    );
    let nested = Array::Array(vec![Array::U8(vec![1]), Array::U8(vec![2, 3])]);
    assert_eq!(meta.get("a.nested"), Some(&Value::Array(nested)));
    assert_eq!(meta.get_u64_per_layer("a.u8", 3).unwrap().unwrap(), [8; 3]);

    assert_eq!(meta.get_str("absent").unwrap(), None);
    assert_eq!(meta.get_array_f32("absent").unwrap(), None);
    let error = |e: GgufError| e.to_string();
    let missing = error(meta.require_str("absent").unwrap_err());
    assert_mentions(&missing, &["m.gguf", "`absent`", "a string", "missing"]);
    let wrong = error(meta.get_u64("a.f32").unwrap_err());
    assert_mentions(&wrong, &["`a.f32`", "an integer", "an f32"]);
    let negative = error(meta.get_u64("a.i32").unwrap_err());
    assert_mentions(&negative, &["`a.i32`", "-32"]);
    let wide = error(meta.get_u32("a.u64").unwrap_err());
    assert_mentions(&wide, &["`a.u64`", "18446744073709551615"]);
    let element = error(meta.get_array_u32("a.i32s").unwrap_err());
    assert_mentions(&element, &["`a.i32s`", "-2", "element 1"]);
    let layers = error(meta.get_u64_per_layer("a.strings", 2).unwrap_err());
    assert_mentions(&layers, &["`a.strings`", "2 strings"]);
    let layers = error(meta.get_u64_per_layer("a.nested", 2).unwrap_err());
    assert_mentions(&layers, &["2 arrays"]);
}

#[test]
fn strings_keep_their_bytes() {
    let bytes = GgufBuilder::default()
        .raw_pair(b"k", 8, &string_bytes(b"\xff\xfea"))
        .raw_pair(
            b"list",
            9,
            &[
                &8u32.to_le_bytes()[..],
                &1u64.to_le_bytes(),
                &string_bytes(b"\xe2\x82"),
            ]
            .concat(),
        )
        .build();
    let file = open_bytes(&bytes).unwrap();
    let meta = file.metadata();
    assert_mentions(
        &meta.get_str("k").unwrap_err().to_string(),
        &["`k`", "UTF-8"],
    );
    assert_mentions(
        &meta.get_array_str("list").unwrap_err().to_string(),
        &["`list`", "element 0"],
    );
    assert_eq!(
        meta.require_array_text("list").unwrap()[0].as_bytes(),
        b"\xe2\x82"
    );
}

#[test]
fn refuses_other_formats() {
    let mut bytes = small().build();
    bytes[4..8].copy_from_slice(&1u32.to_le_bytes());
    assert_mentions(&refused(&bytes), &["version 1", "2 and 3"]);
    bytes[4..8].copy_from_slice(&4u32.to_le_bytes());
    assert_mentions(&refused(&bytes), &["version 4"]);
    bytes[4..8].copy_from_slice(&3u32.to_be_bytes());
    assert_mentions(&refused(&bytes), &["big-endian"]);
    bytes[4..8].copy_from_slice(&0u32.to_be_bytes());
    assert_mentions(&refused(&bytes), &["version 0"]);

    assert_mentions(&refused(b""), &["empty"]);
    assert_mentions(&refused(b"tjgg1234"), &["older ggml format"]);
    assert_mentions(
        &refused(b"version https://git-lfs.github.com/spec/v1\n"),
        &["Git LFS"],
    );
    assert_mentions(&refused(b"<!DOCTYPE html>"), &["web page"]);
    assert_mentions(&refused(b"PK\x03\x04...."), &["\"PK\\u{3}\\u{4}\""]);
    let folder = tempdir().unwrap();
    assert_mentions(
        &GgufFile::open(folder.path()).unwrap_err().to_string(),
        &["not a regular file"],
    );
    let absent = folder.path().join("absent.gguf");
    assert!(matches!(
        GgufFile::open(&absent).unwrap_err(),
        GgufError::Io { .. }
    ));
}

/// Opens bytes without a file, which thousands of cases would make slow.
fn check_bytes(bytes: &[u8]) -> Result<(Metadata, Vec<TensorInfo>)> {
    let path = Path::new("m.gguf");
    let header = parse::parse_header(path, bytes)?;
    let tensors = layout::check_layout(path, 0, &header, bytes.len() as u64)?;
    Ok((header.metadata, tensors))
}

#[test]
fn truncation_anywhere_is_an_error() {
    // The last tensor ends exactly where the file does, so no cut leaves the data complete.
    let bytes = small().build();
    for length in 0..bytes.len() {
        assert!(check_bytes(&bytes[..length]).is_err(), "cut at {length}");
    }
    check_bytes(&bytes).unwrap();
    for length in (0..bytes.len()).step_by(50) {
        assert!(open_bytes(&bytes[..length]).is_err(), "cut at {length}");
    }
    // Padding after the last tensor may be missing or present.
    let mut padded = bytes.clone();
    padded.resize(bytes.len() + 28, 0);
    open_bytes(&padded).unwrap();
    open_bytes(&bytes).unwrap();
}

#[test]
fn random_damage_never_panics_and_what_opens_can_be_read() {
    let bytes = small().build();
    let mut random = StdRng::seed_from_u64(7);
    let mut opened = 0;
    for _ in 0..5000 {
        let mut damaged = bytes.clone();
        for _ in 0..random.random_range(1..4) {
            let at = random.random_range(0..damaged.len());
            damaged[at] ^= 1 << random.random_range(0..8);
        }
        if let Ok((metadata, tensors)) = check_bytes(&damaged) {
            opened += 1;
            for tensor in &tensors {
                let data = &damaged[tensor.byte_range()];
                assert_eq!(data.len(), tensor.byte_count());
                assert!(!data.is_empty());
            }
            for (key, _) in metadata.iter() {
                _ = metadata.get_u64(key);
                _ = metadata.get_array_str(key);
                _ = metadata.get_array_f32(key);
            }
        }
    }
    // Flips in tensor data and in plain values leave a readable file.
    assert!(opened > 500, "{opened}");
}

/// Headers that claim far more than the file holds. The test would run out of memory, or take minutes, if a claim were
/// believed.
#[test]
fn lying_lengths_are_refused_before_allocation() {
    let base = GgufBuilder::default();
    let string_of = |length: u64| base.clone().raw_pair(b"k", 8, &length.to_le_bytes());
    for length in [1 << 40, 1 << 60, u64::MAX, u64::MAX - 8] {
        let message = refused(&string_of(length).build());
        assert_mentions(&message, &["`k`", &length.to_string(), "only 0 are left"]);
    }
    let array_of = |id: u32, count: u64| {
        let value = [&id.to_le_bytes()[..], &count.to_le_bytes()].concat();
        base.clone().raw_pair(b"k", 9, &value)
    };
    for id in 0..=12 {
        for count in [1 << 40, 1 << 60, 1 << 62, u64::MAX] {
            let message = refused(&array_of(id, count).build());
            assert_mentions(&message, &["`k`", "cut short"]);
        }
    }
    // Counts of the header itself: position 8 holds the tensor count, 16 the number of pairs.
    for (position, what) in [(8, "tensor list"), (16, "metadata")] {
        for count in [1u64 << 30, 1 << 60, u64::MAX] {
            let mut bytes = small().build();
            bytes[position..position + 8].copy_from_slice(&count.to_le_bytes());
            assert_mentions(&refused(&bytes), &[what, &count.to_string()]);
        }
    }
    // A key and a tensor name.
    let mut bytes = base.clone().raw_pair(b"k", 0, &[0]).build();
    bytes[24..32].copy_from_slice(&(1u64 << 61).to_le_bytes());
    assert_mentions(&refused(&bytes), &["metadata key 0"]);
    let mut bytes = base.clone().raw_tensor("t", 0, &[1], 0).build();
    bytes[24..32].copy_from_slice(&(1u64 << 61).to_le_bytes());
    assert_mentions(&refused(&bytes), &["tensor 0"]);
}

#[test]
fn header_size_is_bounded_even_when_the_file_is_large() {
    // A sparse file of 300 MiB in which one string claims nearly all of it.
    let folder = tempdir().unwrap();
    let path = folder.path().join("m.gguf");
    let length: u64 = 299 << 20;
    let bytes = GgufBuilder::default().raw_pair(b"k", 8, &length.to_le_bytes());
    std::fs::write(&path, bytes.build()).unwrap();
    let file = std::fs::File::options().write(true).open(&path).unwrap();
    file.set_len(300 << 20).unwrap();
    let message = GgufFile::open(&path).unwrap_err().to_string();
    assert_mentions(&message, &["`k`", "more than is supported"]);
}

#[test]
fn refuses_bad_metadata() {
    let base = GgufBuilder::default();
    let twice = base
        .clone()
        .pair("k", Value::U8(1))
        .pair("k", Value::Bool(true));
    assert_mentions(&refused(&twice.build()), &["`k`", "twice"]);
    let flag = base.clone().raw_pair(b"k", 7, &[2]);
    assert_mentions(&refused(&flag.build()), &["`k`", "2 as a bool"]);
    let kind = base.clone().raw_pair(b"k", 13, &[0; 8]);
    assert_mentions(&refused(&kind.build()), &["`k`", "value type 13"]);
    let key = base.clone().raw_pair(b"k\xff", 0, &[0]);
    assert_mentions(&refused(&key.build()), &["metadata key 0", "UTF-8"]);
    let empty = base.clone().raw_pair(b"", 0, &[0; 8]);
    assert_mentions(&refused(&empty.build()), &["metadata key 0"]);

    let nested = |depth: usize| {
        let value = (1..depth).fold(Array::U8(vec![1]), |inner, _| Array::Array(vec![inner]));
        base.clone().pair("k", Value::Array(value)).build()
    };
    open_bytes(&nested(4)).unwrap();
    assert_mentions(&refused(&nested(5)), &["`k`", "more than 4 deep"]);

    for (value, words) in [
        (Value::U32(0), "is 0"),
        (Value::U32(24), "is 24"),
        (string("32"), "a string"),
        (Value::I32(-32), "-32"),
    ] {
        let mut builder = base.clone().pair("general.alignment", value);
        builder.alignment = 32;
        assert_mentions(&refused(&builder.build()), &["`general.alignment`", words]);
    }
}

#[test]
fn alignment_of_the_file_is_used() {
    let bytes = GgufBuilder::default()
        .pair("general.alignment", Value::U32(128))
        .tensor("a", 0, &[1], &floats(1))
        .tensor("b", 0, &[2], &floats(2))
        .build();
    let file = open_bytes(&bytes).unwrap();
    let b = file.tensor("b").unwrap();
    assert_eq!(b.byte_range().start % 128, 0);
    assert_eq!(file.data(b), floats(2));
    let huge = GgufBuilder::default()
        .pair("general.alignment", Value::U64(1 << 63))
        .raw_tensor("a", 0, &[1], 0)
        .build();
    assert_mentions(&refused(&huge), &["cut short", "`a`"]);
}

#[test]
fn refuses_bad_tensors() {
    let base = GgufBuilder::default();
    let with = |id: u32, shape: &[u64], offset: u64| {
        let builder = base.clone().raw_tensor("t", id, shape, offset);
        refused(&builder.data(&[0; 4096]).build())
    };
    assert_mentions(&with(0, &[1; 5], 0), &["`t`", "5 dimensions", "at most 4"]);
    assert_mentions(&with(0, &[2, 0], 0), &["`t`", "[2, 0]", "at least 1"]);
    assert_mentions(
        &with(0, &[1 << 40, 1 << 40], 0),
        &["`t`", "no file can hold"],
    );
    assert_mentions(&with(0, &[1 << 62, 1], 0), &["`t`", "no file can hold"]);
    assert_mentions(&with(4, &[32], 0), &["`t`", "element type 4", "Q4_K"]);
    assert_mentions(&with(12, &[255], 0), &["`t`", "255", "blocks of 256"]);
    // The rows must be whole blocks; it is not enough that the whole tensor is.
    assert_mentions(&with(2, &[32, 16], 0), &["`t`", "16", "blocks of 32"]);
    assert_mentions(&with(0, &[1], 4), &["`t`", "offset 4", "multiples of 32"]);
    assert_mentions(&with(0, &[1], u64::MAX - 31), &["`t`", "no file can reach"]);
    assert_mentions(&with(0, &[1], 1 << 40), &["`t`", "cut short"]);
    assert_mentions(&with(0, &[1025], 0), &["`t`", "4100 bytes", "only 4096"]);

    let pair = |second: &str, offset: u64| {
        base.clone()
            .raw_tensor("t", 0, &[16], 0)
            .raw_tensor(second, 0, &[16], offset)
            .data(&[0; 256])
            .build()
    };
    open_bytes(&pair("u", 64)).unwrap();
    assert_mentions(&refused(&pair("u", 32)), &["`u`", "overlaps", "`t`"]);
    assert_mentions(&refused(&pair("t", 64)), &["`t`", "twice"]);
    let scalar = base.clone().tensor("s", 0, &[], &floats(1)).build();
    let file = open_bytes(&scalar).unwrap();
    assert_eq!(file.tensor("s").unwrap().element_count(), 1);
}

#[test]
fn a_tensor_of_another_file_has_no_data() {
    let large = open_bytes(&small().build()).unwrap();
    let empty = open_bytes(&GgufBuilder::default().build()).unwrap();
    assert!(empty.data(large.tensor("two").unwrap()).is_empty());
}

fn shard(number: u16, count: u16, tensor: &str) -> GgufBuilder {
    let builder = match number {
        0 => GgufBuilder::default()
            .pair("general.architecture", string("llama"))
            .pair("split.tensors.count", Value::I32(i32::from(count))),
        _ => GgufBuilder::default(),
    };
    builder
        .pair("split.no", Value::U16(number))
        .pair("split.count", Value::U16(count))
        .tensor(tensor, 0, &[1], &f32::from(number).to_le_bytes())
}

fn write_shards(folder: &Path) {
    for i in 0..3 {
        let name = format!("big-{:05}-of-00003.gguf", i + 1);
        shard(i, 3, &format!("t{i}")).write(folder, &name);
    }
}

#[test]
fn a_split_model_opens_from_any_shard() {
    let folder = tempdir().unwrap();
    write_shards(folder.path());
    for i in 1..=3 {
        let path = folder.path().join(format!("big-{i:05}-of-00003.gguf"));
        let file = GgufFile::open(&path).unwrap();
        assert_eq!(file.path(), path);
        assert_eq!(file.shards().len(), 3);
        assert_eq!(
            file.metadata().require_str("general.architecture").unwrap(),
            "llama"
        );
        let names: Vec<_> = file.tensors().map(TensorInfo::name).collect();
        assert_eq!(names, ["t0", "t1", "t2"]);
        for (number, tensor) in file.tensors().enumerate() {
            assert_eq!(tensor.shard(), number);
            assert_eq!(file.data(tensor), (number as f32).to_le_bytes());
        }
    }
}

#[test]
fn a_split_model_with_a_wrong_or_missing_part_is_refused() {
    let folder = tempdir().unwrap();
    let at = |i: u16| folder.path().join(format!("big-{i:05}-of-00003.gguf"));
    let open = || GgufFile::open(&at(1)).unwrap_err().to_string();

    write_shards(folder.path());
    std::fs::remove_file(at(3)).unwrap();
    assert_mentions(&open(), &["one of 3 files", "big-00003-of-00003.gguf"]);

    shard(1, 3, "t9").write(folder.path(), "big-00003-of-00003.gguf");
    assert_mentions(&open(), &["big-00003-of-00003.gguf", "should be 2 and 3"]);
    shard(2, 3, "t1").write(folder.path(), "big-00003-of-00003.gguf");
    assert_mentions(&open(), &["`t1`", "twice"]);
    small().write(folder.path(), "big-00003-of-00003.gguf");
    assert_mentions(&open(), &["absent"]);
    let more = shard(2, 3, "t2").tensor("t3", 0, &[1], &floats(1));
    more.write(folder.path(), "big-00003-of-00003.gguf");
    assert_mentions(&open(), &["promises 3 tensors", "hold 4"]);

    let renamed = shard(0, 3, "t0").write(folder.path(), "renamed.gguf");
    let message = GgufFile::open(&renamed).unwrap_err().to_string();
    assert_mentions(&message, &["renamed.gguf", "-00001-of-00003.gguf"]);
    let beyond = shard(3, 3, "t0").write(folder.path(), "big-00004-of-00003.gguf");
    let message = GgufFile::open(&beyond).unwrap_err().to_string();
    assert_mentions(&message, &["`split.no`", "is 3"]);
}

#[test]
fn type_table_is_consistent() {
    for id in 0..64 {
        let ggml_type = GgmlType::from_id(id);
        assert_eq!(ggml_type.id(), id);
        let unknown = matches!(ggml_type, GgmlType::Unknown(_));
        assert_eq!(ggml_type.block_size() == 0, unknown);
        assert_eq!(ggml_type.type_size() == 0, unknown);
    }
    assert_eq!(GgmlType::from_id(12).to_string(), "Q4_K");
    assert_eq!(GgmlType::from_id(99).to_string(), "unknown type 99");
    assert!(GgmlType::Q4_0.is_quantized() && !GgmlType::BF16.is_quantized());
}
