//! Metadata values, with the conversions between numbers that readers of metadata need.

use std::borrow::Cow;
use std::fmt;

/// The bytes of a GGUF string.
///
/// The format asks for UTF-8, but vocabularies in the wild hold pieces of characters, so the bytes are kept as they are
/// and checked where text is asked for.
#[derive(Clone, PartialEq, Eq, Hash, Default)]
pub struct Text(Box<[u8]>);

impl Text {
    /// The bytes as stored.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// The text, if the bytes are valid UTF-8.
    pub fn as_str(&self) -> Option<&str> {
        std::str::from_utf8(&self.0).ok()
    }

    /// The text, with U+FFFD in place of what is not UTF-8.
    pub fn to_string_lossy(&self) -> Cow<'_, str> {
        String::from_utf8_lossy(&self.0)
    }
}

impl From<&[u8]> for Text {
    fn from(bytes: &[u8]) -> Self {
        Self(bytes.into())
    }
}

impl From<&str> for Text {
    fn from(text: &str) -> Self {
        Self(text.as_bytes().into())
    }
}

impl fmt::Debug for Text {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.to_string_lossy(), f)
    }
}

/// One metadata value.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs, reason = "the variants are the format's own type names")]
pub enum Value {
    U8(u8),
    I8(i8),
    U16(u16),
    I16(i16),
    U32(u32),
    I32(i32),
    U64(u64),
    I64(i64),
    F32(f32),
    F64(f64),
    Bool(bool),
    String(Text),
    Array(Array),
}

/// An array value: all elements have one type. Kept unboxed, so that a vocabulary costs little more memory than file.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs, reason = "the variants are the format's own type names")]
pub enum Array {
    U8(Vec<u8>),
    I8(Vec<i8>),
    U16(Vec<u16>),
    I16(Vec<i16>),
    U32(Vec<u32>),
    I32(Vec<i32>),
    U64(Vec<u64>),
    I64(Vec<i64>),
    F32(Vec<f32>),
    F64(Vec<f64>),
    Bool(Vec<bool>),
    String(Vec<Text>),
    Array(Vec<Array>),
}

impl Array {
    /// Number of elements.
    pub fn len(&self) -> usize {
        match self {
            Self::U8(v) => v.len(),
            Self::I8(v) => v.len(),
            Self::U16(v) => v.len(),
            Self::I16(v) => v.len(),
            Self::U32(v) => v.len(),
            Self::I32(v) => v.len(),
            Self::U64(v) => v.len(),
            Self::I64(v) => v.len(),
            Self::F32(v) => v.len(),
            Self::F64(v) => v.len(),
            Self::Bool(v) => v.len(),
            Self::String(v) => v.len(),
            Self::Array(v) => v.len(),
        }
    }

    /// Whether there are no elements.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub(super) fn element_name(&self) -> &'static str {
        match self {
            Self::U8(_) => "u8",
            Self::I8(_) => "i8",
            Self::U16(_) => "u16",
            Self::I16(_) => "i16",
            Self::U32(_) => "u32",
            Self::I32(_) => "i32",
            Self::U64(_) => "u64",
            Self::I64(_) => "i64",
            Self::F32(_) => "f32",
            Self::F64(_) => "f64",
            Self::Bool(_) => "bool",
            Self::String(_) => "strings",
            Self::Array(_) => "arrays",
        }
    }

    /// The elements converted to `T`, through i128, which holds every integer type. `None` when they are not integers;
    /// the position and number of the first that `T` cannot hold.
    pub(super) fn integers<T: TryFrom<i128>>(
        &self,
    ) -> Option<std::result::Result<Vec<T>, (usize, i128)>> {
        fn all<S: Copy + Into<i128>, T: TryFrom<i128>>(
            numbers: &[S],
        ) -> std::result::Result<Vec<T>, (usize, i128)> {
            let convert = |(i, &x): (usize, &S)| T::try_from(x.into()).map_err(|_| (i, x.into()));
            numbers.iter().enumerate().map(convert).collect()
        }
        Some(match self {
            Self::U8(v) => all(v),
            Self::I8(v) => all(v),
            Self::U16(v) => all(v),
            Self::I16(v) => all(v),
            Self::U32(v) => all(v),
            Self::I32(v) => all(v),
            Self::U64(v) => all(v),
            Self::I64(v) => all(v),
            _ => return None,
        })
    }

    /// The elements as f32, floats rounded; `None` when they are not numbers.
    pub(super) fn floats(&self) -> Option<Vec<f32>> {
        Some(match self {
            Self::U8(v) => v.iter().map(|&x| x.into()).collect(),
            Self::I8(v) => v.iter().map(|&x| x.into()).collect(),
            Self::U16(v) => v.iter().map(|&x| x.into()).collect(),
            Self::I16(v) => v.iter().map(|&x| x.into()).collect(),
            Self::U32(v) => v.iter().map(|&x| x as f32).collect(),
            Self::I32(v) => v.iter().map(|&x| x as f32).collect(),
            Self::U64(v) => v.iter().map(|&x| x as f32).collect(),
            Self::I64(v) => v.iter().map(|&x| x as f32).collect(),
            Self::F32(v) => v.clone(),
            Self::F64(v) => v.iter().map(|&x| x as f32).collect(),
            Self::Bool(_) | Self::String(_) | Self::Array(_) => return None,
        })
    }
}

impl Value {
    /// The type, in words for messages.
    pub fn type_name(&self) -> String {
        let scalar = match self {
            Self::U8(_) => "a u8",
            Self::I8(_) => "an i8",
            Self::U16(_) => "a u16",
            Self::I16(_) => "an i16",
            Self::U32(_) => "a u32",
            Self::I32(_) => "an i32",
            Self::U64(_) => "a u64",
            Self::I64(_) => "an i64",
            Self::F32(_) => "an f32",
            Self::F64(_) => "an f64",
            Self::Bool(_) => "a bool",
            Self::String(_) => "a string",
            Self::Array(array) => {
                return format!("an array of {} {}", array.len(), array.element_name());
            }
        };
        scalar.to_owned()
    }

    pub(super) fn integer(&self) -> Option<i128> {
        Some(match *self {
            Self::U8(x) => x.into(),
            Self::I8(x) => x.into(),
            Self::U16(x) => x.into(),
            Self::I16(x) => x.into(),
            Self::U32(x) => x.into(),
            Self::I32(x) => x.into(),
            Self::U64(x) => x.into(),
            Self::I64(x) => x.into(),
            _ => return None,
        })
    }

    pub(super) fn float(&self) -> Option<f64> {
        match *self {
            Self::F32(x) => Some(x.into()),
            Self::F64(x) => Some(x),
            _ => self.integer().map(|x| x as f64),
        }
    }
}
