//! Reads the header of one GGUF file from its bytes, believing none of its numbers.

use std::path::Path;

use super::layout::RawTensor;
use super::value::{Array, Text, Value};
use super::{GgmlType, GgufError, Metadata, Result};

/// What real headers never reach (the largest vocabularies take about 30 MB), so that a file of many gigabytes cannot
/// have its tensor data read into memory as one string.
const MAX_HEADER_BYTES: u64 = 256 << 20;
/// Arrays may hold arrays down to this depth; the format allows any, files use none.
const MAX_ARRAY_DEPTH: usize = 4;
/// `GGML_MAX_DIMS`.
const MAX_RANK: u32 = 4;
/// The format's limit on the length of a key.
const MAX_KEY_BYTES: usize = 65_535;
/// Smallest possible key-value pair: key length, one byte of key, type, one byte of value.
const MIN_PAIR_BYTES: u64 = 8 + 1 + 4 + 1;
/// Smallest possible tensor description: name length, one byte of name, rank, type, offset.
const MIN_TENSOR_BYTES: u64 = 8 + 1 + 4 + 4 + 8;
const DEFAULT_ALIGNMENT: u64 = 32;

/// The header of one file.
pub(super) struct Header {
    pub version: u32,
    pub metadata: Metadata,
    pub tensors: Vec<RawTensor>,
    /// `general.alignment`, a power of two.
    pub alignment: u64,
    /// Position of the data section in the file.
    pub data_start: u64,
}

/// Reads the header at the start of `bytes`, the whole content of the file at `path`.
pub(super) fn parse_header(path: &Path, bytes: &[u8]) -> Result<Header> {
    let mut reader = Reader {
        path,
        bytes,
        position: 0,
    };
    let version = reader.magic_and_version()?;
    let tensor_count = reader.u64("the tensor count")?;
    let pair_count = reader.u64("the metadata count")?;
    reader.check_count("the metadata", pair_count, MIN_PAIR_BYTES)?;

    let mut metadata = Metadata::new(path.display().to_string());
    for i in 0..pair_count {
        let key = reader.key(i)?;
        let value = reader.pair_value(&key)?;
        if let Some(first) = metadata.get(&key) {
            let problem = format!(
                "stands twice in the metadata (first as {})",
                first.type_name()
            );
            return Err(reader.invalid(format!("key `{key}`"), problem));
        }
        metadata.insert(key, value);
        reader.check_header_size()?;
    }

    reader.check_count("the tensor list", tensor_count, MIN_TENSOR_BYTES)?;
    let mut tensors = Vec::new();
    for i in 0..tensor_count {
        tensors.push(reader.tensor(i)?);
        reader.check_header_size()?;
    }

    let alignment = metadata
        .get_u64("general.alignment")?
        .unwrap_or(DEFAULT_ALIGNMENT);
    if !alignment.is_power_of_two() {
        let problem = format!("is {alignment}, but must be a power of two");
        return Err(reader.invalid("key `general.alignment`".to_owned(), problem));
    }
    let header_end = reader.position as u64;
    let Some(data_start) = header_end.checked_next_multiple_of(alignment) else {
        let problem = format!("is {alignment}, which no file can reach");
        return Err(reader.invalid("key `general.alignment`".to_owned(), problem));
    };
    Ok(Header {
        version,
        metadata,
        tensors,
        alignment,
        data_start,
    })
}

/// A position in the bytes of a file.
struct Reader<'a> {
    path: &'a Path,
    bytes: &'a [u8],
    position: usize,
}

/// Fixed-width numbers of the format.
trait Scalar: Sized {
    const SIZE: usize;
    fn read(bytes: &[u8]) -> Option<Self>;
}

macro_rules! scalar {
    ($($type:ty)*) => {$(
        impl Scalar for $type {
            const SIZE: usize = size_of::<$type>();
            fn read(bytes: &[u8]) -> Option<Self> {
                bytes.try_into().ok().map(Self::from_le_bytes)
            }
        }
    )*};
}
scalar!(u8 i8 u16 i16 u32 i32 u64 i64 f32 f64);

impl<'a> Reader<'a> {
    fn remaining(&self) -> u64 {
        (self.bytes.len() - self.position) as u64
    }

    fn truncated(&self, what: String, needed: u64) -> GgufError {
        GgufError::Truncated {
            path: self.path.to_owned(),
            what,
            offset: self.position as u64,
            needed,
            remaining: self.remaining(),
        }
    }

    fn invalid(&self, what: String, problem: String) -> GgufError {
        GgufError::Invalid {
            path: self.path.to_owned(),
            what,
            problem,
        }
    }

    /// The next `n` bytes.
    fn take(&mut self, n: u64, what: impl FnOnce() -> String) -> Result<&'a [u8]> {
        let end = usize::try_from(n)
            .ok()
            .and_then(|n| self.position.checked_add(n));
        match end.and_then(|end| self.bytes.get(self.position..end)) {
            Some(taken) => {
                self.position += taken.len();
                Ok(taken)
            }
            None => Err(self.truncated(what(), n)),
        }
    }

    fn scalar<T: Scalar>(&mut self, what: impl Fn() -> String) -> Result<T> {
        let bytes = self.take(T::SIZE as u64, &what)?;
        T::read(bytes).ok_or_else(|| self.truncated(what(), T::SIZE as u64))
    }

    fn u64(&mut self, what: &str) -> Result<u64> {
        self.scalar(|| what.to_owned())
    }

    /// Refuses a count of entries that the rest of the file cannot hold.
    fn check_count(&self, what: &str, count: u64, entry_bytes: u64) -> Result<()> {
        let needed = count.saturating_mul(entry_bytes);
        if needed > self.remaining() {
            return Err(self.truncated(format!("{what} ({count} entries)"), needed));
        }
        Ok(())
    }

    fn check_header_size(&self) -> Result<()> {
        if self.position as u64 > MAX_HEADER_BYTES {
            let problem = format!(
                "is larger than {} MiB, the most that is supported",
                MAX_HEADER_BYTES >> 20
            );
            return Err(self.invalid("the header".to_owned(), problem));
        }
        Ok(())
    }

    fn magic_and_version(&mut self) -> Result<u32> {
        if !self.bytes.starts_with(b"GGUF") {
            return Err(GgufError::NotGguf {
                path: self.path.to_owned(),
                found: describe_start(self.bytes),
            });
        }
        self.take(4, || "the magic".to_owned())?;
        let version: u32 = self.scalar(|| "the version".to_owned())?;
        match version {
            2 | 3 => Ok(version),
            // A small number whose bytes stand the other way round.
            _ if version != 0 && version & 0xffff == 0 => Err(GgufError::BigEndian {
                path: self.path.to_owned(),
            }),
            _ => Err(GgufError::UnsupportedVersion {
                path: self.path.to_owned(),
                version,
            }),
        }
    }

    fn key(&mut self, i: u64) -> Result<String> {
        let what = || format!("metadata key {i}");
        let length: u64 = self.scalar(what)?;
        let bytes = self.take(length, what)?;
        if bytes.is_empty() || bytes.len() > MAX_KEY_BYTES {
            let problem = format!(
                "has {} bytes, but keys have 1 to {MAX_KEY_BYTES}",
                bytes.len()
            );
            return Err(self.invalid(what(), problem));
        }
        self.utf8(bytes, what)
    }

    fn utf8(&self, bytes: &[u8], what: impl Fn() -> String) -> Result<String> {
        // Copied first: the mapped bytes could change between a check and a copy.
        String::from_utf8(bytes.to_vec()).map_err(|error| {
            let bytes = error.as_bytes();
            let start = String::from_utf8_lossy(bytes.get(..64).unwrap_or(bytes)).into_owned();
            self.invalid(what(), format!("is not valid UTF-8 ({start:?})"))
        })
    }

    fn pair_value(&mut self, key: &str) -> Result<Value> {
        let what = || format!("key `{key}`");
        let type_id: u32 = self.scalar(what)?;
        Ok(match type_id {
            0 => Value::U8(self.scalar(what)?),
            1 => Value::I8(self.scalar(what)?),
            2 => Value::U16(self.scalar(what)?),
            3 => Value::I16(self.scalar(what)?),
            4 => Value::U32(self.scalar(what)?),
            5 => Value::I32(self.scalar(what)?),
            6 => Value::F32(self.scalar(what)?),
            7 => Value::Bool(self.bool(key)?),
            8 => Value::String(self.text(key)?),
            9 => Value::Array(self.array(key, 1)?),
            10 => Value::U64(self.scalar(what)?),
            11 => Value::I64(self.scalar(what)?),
            12 => Value::F64(self.scalar(what)?),
            other => return Err(self.unknown_value_type(key, other)),
        })
    }

    fn unknown_value_type(&self, key: &str, type_id: u32) -> GgufError {
        let problem = format!("has value type {type_id}, but types 0 to 12 are supported");
        self.invalid(format!("key `{key}`"), problem)
    }

    fn bool(&mut self, key: &str) -> Result<bool> {
        let what = || format!("key `{key}`");
        match self.scalar::<u8>(what)? {
            0 => Ok(false),
            1 => Ok(true),
            other => Err(self.invalid(
                what(),
                format!("holds {other} as a bool, which is 0 or 1 only"),
            )),
        }
    }

    fn text(&mut self, key: &str) -> Result<Text> {
        let what = || format!("key `{key}`");
        let length: u64 = self.scalar(what)?;
        if length > MAX_HEADER_BYTES && length <= self.remaining() {
            let problem = format!("holds a string of {length} bytes, more than is supported");
            return Err(self.invalid(what(), problem));
        }
        self.take(length, || format!("a string in key `{key}`"))
            .map(Text::from)
    }

    fn numbers<T: Scalar>(&mut self, key: &str, count: u64) -> Result<Vec<T>> {
        let what = || format!("the array of {count} elements in key `{key}`");
        let length = count.saturating_mul(T::SIZE as u64);
        if length > MAX_HEADER_BYTES && length <= self.remaining() {
            let problem = format!("takes {length} bytes, more than is supported");
            return Err(self.invalid(what(), problem));
        }
        let bytes = self.take(length, what)?;
        Ok(bytes
            .chunks_exact(T::SIZE)
            .filter_map(|chunk| T::read(chunk))
            .collect())
    }

    /// Reads an array; `depth` is 1 for one that is not inside another.
    fn array(&mut self, key: &str, depth: usize) -> Result<Array> {
        let what = || format!("key `{key}`");
        if depth > MAX_ARRAY_DEPTH {
            let problem = format!("nests arrays more than {MAX_ARRAY_DEPTH} deep");
            return Err(self.invalid(what(), problem));
        }
        let type_id: u32 = self.scalar(what)?;
        let count: u64 = self.scalar(what)?;
        Ok(match type_id {
            0 => Array::U8(self.numbers(key, count)?),
            1 => Array::I8(self.numbers(key, count)?),
            2 => Array::U16(self.numbers(key, count)?),
            3 => Array::I16(self.numbers(key, count)?),
            4 => Array::U32(self.numbers(key, count)?),
            5 => Array::I32(self.numbers(key, count)?),
            6 => Array::F32(self.numbers(key, count)?),
            7 => {
                self.check_count(&format!("the array in key `{key}`"), count, 1)?;
                let mut flags = Vec::new();
                for _ in 0..count {
                    flags.push(self.bool(key)?);
                    self.check_header_size()?;
                }
                Array::Bool(flags)
            }
            8 => {
                self.check_count(&format!("the array of strings in key `{key}`"), count, 8)?;
                let mut texts = Vec::new();
                for _ in 0..count {
                    texts.push(self.text(key)?);
                    self.check_header_size()?;
                }
                Array::String(texts)
            }
            9 => {
                self.check_count(&format!("the array of arrays in key `{key}`"), count, 12)?;
                let mut arrays = Vec::new();
                for _ in 0..count {
                    arrays.push(self.array(key, depth + 1)?);
                    self.check_header_size()?;
                }
                Array::Array(arrays)
            }
            10 => Array::U64(self.numbers(key, count)?),
            11 => Array::I64(self.numbers(key, count)?),
            12 => Array::F64(self.numbers(key, count)?),
            other => return Err(self.unknown_value_type(key, other)),
        })
    }

    fn tensor(&mut self, i: u64) -> Result<RawTensor> {
        let what = || format!("the name of tensor {i}");
        let length: u64 = self.scalar(what)?;
        let bytes = self.take(length, what)?;
        if bytes.is_empty() || bytes.len() > MAX_KEY_BYTES {
            let problem = format!(
                "has {} bytes, but names have 1 to {MAX_KEY_BYTES}",
                bytes.len()
            );
            return Err(self.invalid(what(), problem));
        }
        let name = self.utf8(bytes, what)?;

        let what = || format!("the description of tensor `{name}`");
        let rank: u32 = self.scalar(what)?;
        if rank > MAX_RANK {
            let problem = format!("has {rank} dimensions, but at most {MAX_RANK} are supported");
            return Err(self.invalid(format!("tensor `{name}`"), problem));
        }
        // The file lists the innermost (contiguous) dimension first; shapes are outermost first.
        let mut shape = Vec::new();
        for _ in 0..rank {
            shape.insert(0, self.scalar::<u64>(what)?);
        }
        let ggml_type = GgmlType::from_id(self.scalar(what)?);
        let offset = self.scalar(what)?;
        Ok(RawTensor {
            name,
            ggml_type,
            shape,
            offset,
        })
    }
}

/// Guesses from its first bytes what a file is that is not GGUF.
fn describe_start(bytes: &[u8]) -> String {
    let guess = match bytes {
        [] => "it is empty",
        [b'l' | b't', b'm' | b'j', b'g', b'g', ..] | [b'f', b'm', b'g', b'g', ..] => {
            "it is in an older ggml format, which is not supported; convert the model to GGUF"
        }
        _ if bytes.starts_with(b"version https://git-lfs") => {
            "it is a Git LFS pointer; download the file that it stands for"
        }
        _ if bytes.starts_with(b"<!") || bytes.starts_with(b"<html") => {
            "it is a web page, so its download failed"
        }
        _ if bytes.starts_with(b"FUGG") => {
            "it is written for machines of the other byte order, which is not supported"
        }
        _ => {
            let start = bytes.get(..4).unwrap_or(bytes);
            return format!(
                "it starts with {:?} instead of \"GGUF\"",
                String::from_utf8_lossy(start)
            );
        }
    };
    guess.to_owned()
}
