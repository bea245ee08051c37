//! A small GGUF writer, for tests only.

use std::path::{Path, PathBuf};

use super::{Array, Metadata, Text, Value};

/// Builds the bytes of a GGUF file. Nothing is checked, so that tests can write wrong files.
#[derive(Clone, Debug)]
pub(crate) struct GgufBuilder {
    pub(crate) version: u32,
    pub(crate) alignment: usize,
    pairs: Vec<u8>,
    pair_count: u64,
    tensors: Vec<u8>,
    tensor_count: u64,
    data: Vec<u8>,
}

impl Default for GgufBuilder {
    fn default() -> Self {
        Self {
            version: 3,
            alignment: 32,
            pairs: Vec::new(),
            pair_count: 0,
            tensors: Vec::new(),
            tensor_count: 0,
            data: Vec::new(),
        }
    }
}

pub(crate) fn string_bytes(text: &[u8]) -> Vec<u8> {
    let mut bytes = (text.len() as u64).to_le_bytes().to_vec();
    bytes.extend(text);
    bytes
}

fn array_bytes(array: &Array) -> Vec<u8> {
    fn numbers<const N: usize, T: Copy>(
        id: u32,
        values: &[T],
        bytes: impl Fn(T) -> [u8; N],
    ) -> Vec<u8> {
        let mut out = id.to_le_bytes().to_vec();
        out.extend((values.len() as u64).to_le_bytes());
        out.extend(values.iter().flat_map(|&value| bytes(value)));
        out
    }
    match array {
        Array::U8(v) => numbers(0, v, u8::to_le_bytes),
        Array::I8(v) => numbers(1, v, i8::to_le_bytes),
        Array::U16(v) => numbers(2, v, u16::to_le_bytes),
        Array::I16(v) => numbers(3, v, i16::to_le_bytes),
        Array::U32(v) => numbers(4, v, u32::to_le_bytes),
        Array::I32(v) => numbers(5, v, i32::to_le_bytes),
        Array::F32(v) => numbers(6, v, f32::to_le_bytes),
        Array::Bool(v) => numbers(7, v, |flag| [flag.into()]),
        Array::U64(v) => numbers(10, v, u64::to_le_bytes),
        Array::I64(v) => numbers(11, v, i64::to_le_bytes),
        Array::F64(v) => numbers(12, v, f64::to_le_bytes),
        Array::String(v) => {
            let mut out = numbers::<0, u8>(8, &[], |_| []);
            out[4..].copy_from_slice(&(v.len() as u64).to_le_bytes());
            out.extend(v.iter().flat_map(|text| string_bytes(text.as_bytes())));
            out
        }
        Array::Array(v) => {
            let mut out = numbers::<0, u8>(9, &[], |_| []);
            out[4..].copy_from_slice(&(v.len() as u64).to_le_bytes());
            out.extend(v.iter().flat_map(array_bytes));
            out
        }
    }
}

impl GgufBuilder {
    pub(crate) fn pair(mut self, key: &str, value: Value) -> Self {
        let (id, bytes) = match &value {
            Value::U8(x) => (0, x.to_le_bytes().to_vec()),
            Value::I8(x) => (1, x.to_le_bytes().to_vec()),
            Value::U16(x) => (2, x.to_le_bytes().to_vec()),
            Value::I16(x) => (3, x.to_le_bytes().to_vec()),
            Value::U32(x) => (4, x.to_le_bytes().to_vec()),
            Value::I32(x) => (5, x.to_le_bytes().to_vec()),
            Value::F32(x) => (6, x.to_le_bytes().to_vec()),
            Value::Bool(x) => (7, vec![u8::from(*x)]),
            Value::String(x) => (8, string_bytes(x.as_bytes())),
            Value::Array(x) => (9, array_bytes(x)),
            Value::U64(x) => (10, x.to_le_bytes().to_vec()),
            Value::I64(x) => (11, x.to_le_bytes().to_vec()),
            Value::F64(x) => (12, x.to_le_bytes().to_vec()),
        };
        if key == "general.alignment"
            && let Value::U32(alignment) = value
        {
            self.alignment = alignment as usize;
        }
        self.raw_pair(key.as_bytes(), id, &bytes)
    }

    /// A pair whose value bytes are given as they are.
    pub(crate) fn raw_pair(mut self, key: &[u8], type_id: u32, value: &[u8]) -> Self {
        self.pairs.extend(string_bytes(key));
        self.pairs.extend(type_id.to_le_bytes());
        self.pairs.extend(value);
        self.pair_count += 1;
        self
    }

    /// A tensor at the next aligned offset; `shape` is outermost first.
    pub(crate) fn tensor(mut self, name: &str, type_id: u32, shape: &[u64], data: &[u8]) -> Self {
        let offset = self.data.len().next_multiple_of(self.alignment);
        self.data.resize(offset, 0);
        self.data.extend(data);
        self.raw_tensor(name, type_id, shape, offset as u64)
    }

    /// The description of a tensor, without data.
    pub(crate) fn raw_tensor(
        mut self,
        name: &str,
        type_id: u32,
        shape: &[u64],
        offset: u64,
    ) -> Self {
        self.tensors.extend(string_bytes(name.as_bytes()));
        self.tensors.extend((shape.len() as u32).to_le_bytes());
        for dimension in shape.iter().rev() {
            self.tensors.extend(dimension.to_le_bytes());
        }
        self.tensors.extend(type_id.to_le_bytes());
        self.tensors.extend(offset.to_le_bytes());
        self.tensor_count += 1;
        self
    }

    pub(crate) fn data(mut self, data: &[u8]) -> Self {
        self.data.extend(data);
        self
    }

    pub(crate) fn build(&self) -> Vec<u8> {
        let mut bytes = b"GGUF".to_vec();
        bytes.extend(self.version.to_le_bytes());
        bytes.extend(self.tensor_count.to_le_bytes());
        bytes.extend(self.pair_count.to_le_bytes());
        bytes.extend(&self.pairs);
        bytes.extend(&self.tensors);
        let start = bytes.len().next_multiple_of(self.alignment.max(1));
        if !self.data.is_empty() {
            bytes.resize(start, 0);
            bytes.extend(&self.data);
        }
        bytes
    }

    pub(crate) fn write(&self, folder: &Path, name: &str) -> PathBuf {
        let path = folder.join(name);
        std::fs::write(&path, self.build()).unwrap();
        path
    }
}

pub(crate) fn strings<T: AsRef<str>>(texts: impl IntoIterator<Item = T>) -> Value {
    Value::Array(Array::String(
        texts.into_iter().map(|t| Text::from(t.as_ref())).collect(),
    ))
}

pub(crate) fn string(text: &str) -> Value {
    Value::String(text.into())
}

/// Metadata from pairs, without a file.
pub(crate) fn metadata(pairs: impl IntoIterator<Item = (&'static str, Value)>) -> Metadata {
    let mut metadata = Metadata::new("test.gguf");
    for (key, value) in pairs {
        assert!(metadata.insert(key, value), "{key} twice");
    }
    metadata
}
