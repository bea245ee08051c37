//! The key-value part of a GGUF header, with typed access.

use std::collections::HashMap;

use super::value::{Array, Text, Value};
use super::{GgufError, Result};

/// The metadata of a GGUF file: keys in file order, each once.
///
/// Getters return `Ok(None)` for an absent key and an error for a key of another type; integers of any width are
/// accepted for an integer, and integers also for a float, because writers differ.
#[derive(Clone, Debug)]
pub struct Metadata {
    source: String,
    entries: Vec<(String, Value)>,
    index: HashMap<String, usize>,
}

impl Metadata {
    /// Empty metadata; `source` names the file in error messages.
    pub fn new(source: impl Into<String>) -> Self {
        Self {
            source: source.into(),
            entries: Vec::new(),
            index: HashMap::new(),
        }
    }

    /// Adds a key; false, and no change, when it is there already.
    pub fn insert(&mut self, key: impl Into<String>, value: Value) -> bool {
        let key = key.into();
        if self.index.contains_key(&key) {
            return false;
        }
        self.index.insert(key.clone(), self.entries.len());
        self.entries.push((key, value));
        true
    }

    /// The file that the metadata come from, for messages.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// Number of keys.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there are no keys.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// All keys and values in file order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&str, &Value)> {
        self.entries
            .iter()
            .map(|(key, value)| (key.as_str(), value))
    }

    /// The value of a key, of whatever type.
    pub fn get(&self, key: &str) -> Option<&Value> {
        self.index
            .get(key)
            .and_then(|&at| self.entries.get(at))
            .map(|(_, value)| value)
    }

    fn wrong_type(&self, key: &str, expected: &'static str, found: String) -> GgufError {
        GgufError::WrongType {
            path: self.source.clone(),
            key: key.to_owned(),
            expected,
            found,
        }
    }

    fn missing(&self, key: &str, expected: &'static str) -> GgufError {
        GgufError::MissingKey {
            path: self.source.clone(),
            key: key.to_owned(),
            expected,
        }
    }

    /// Looks a key up and converts it; a failed conversion is a type error that says what was found.
    fn convert<'a, T>(
        &'a self,
        key: &str,
        expected: &'static str,
        convert: impl FnOnce(&'a Value) -> std::result::Result<T, String>,
    ) -> Result<Option<T>> {
        self.get(key)
            .map(|value| convert(value).map_err(|found| self.wrong_type(key, expected, found)))
            .transpose()
    }

    fn integer<T: TryFrom<i128>>(&self, key: &str, expected: &'static str) -> Result<Option<T>> {
        self.convert(key, expected, |value| {
            let integer = value.integer().ok_or_else(|| value.type_name())?;
            T::try_from(integer).map_err(|_| format!("the number {integer}"))
        })
    }

    fn integers<T: TryFrom<i128>>(
        &self,
        key: &str,
        expected: &'static str,
    ) -> Result<Option<Vec<T>>> {
        self.convert(key, expected, |value| {
            let Value::Array(array) = value else {
                return Err(value.type_name());
            };
            match array.integers() {
                Some(Ok(integers)) => Ok(integers),
                Some(Err((i, x))) => Err(format!("the number {x} as its element {i}")),
                None => Err(value.type_name()),
            }
        })
    }

    /// A string.
    ///
    /// # Errors
    /// The key holds another type, or bytes that are not UTF-8.
    pub fn get_str(&self, key: &str) -> Result<Option<&str>> {
        self.convert(key, STR, |value| match value {
            Value::String(text) => text
                .as_str()
                .ok_or_else(|| format!("bytes that are not UTF-8 ({text:?})")),
            other => Err(other.type_name()),
        })
    }

    /// An integer of any width.
    ///
    /// # Errors
    /// The key holds another type or a negative number.
    pub fn get_u64(&self, key: &str) -> Result<Option<u64>> {
        self.integer(key, U64)
    }

    /// An integer of any width.
    ///
    /// # Errors
    /// The key holds another type or a number outside of u32.
    pub fn get_u32(&self, key: &str) -> Result<Option<u32>> {
        self.integer(key, U32)
    }

    /// An integer of any width.
    ///
    /// # Errors
    /// The key holds another type or a number outside of usize.
    pub fn get_usize(&self, key: &str) -> Result<Option<usize>> {
        self.integer(key, U64)
    }

    /// A float, or an integer of any width.
    ///
    /// # Errors
    /// The key holds another type.
    pub fn get_f64(&self, key: &str) -> Result<Option<f64>> {
        self.convert(key, FLOAT, |value| {
            value.float().ok_or_else(|| value.type_name())
        })
    }

    /// A float, or an integer of any width, rounded to f32.
    ///
    /// # Errors
    /// The key holds another type.
    pub fn get_f32(&self, key: &str) -> Result<Option<f32>> {
        Ok(self.get_f64(key)?.map(|x| x as f32))
    }

    /// A bool.
    ///
    /// # Errors
    /// The key holds another type.
    pub fn get_bool(&self, key: &str) -> Result<Option<bool>> {
        self.convert(key, BOOL, |value| match value {
            Value::Bool(flag) => Ok(*flag),
            other => Err(other.type_name()),
        })
    }

    /// An array of strings as their stored bytes.
    ///
    /// # Errors
    /// The key holds another type.
    pub fn get_array_text(&self, key: &str) -> Result<Option<&[Text]>> {
        self.convert(key, ARRAY_STR, |value| match value {
            Value::Array(Array::String(texts)) => Ok(texts.as_slice()),
            other => Err(other.type_name()),
        })
    }

    /// An array of strings.
    ///
    /// # Errors
    /// The key holds another type, or a string that is not UTF-8.
    pub fn get_array_str(&self, key: &str) -> Result<Option<Vec<&str>>> {
        let Some(texts) = self.get_array_text(key)? else {
            return Ok(None);
        };
        texts
            .iter()
            .enumerate()
            .map(|(i, text)| {
                text.as_str().ok_or_else(|| {
                    let found = format!("bytes that are not UTF-8 ({text:?}) as its element {i}");
                    self.wrong_type(key, ARRAY_STR, found)
                })
            })
            .collect::<Result<_>>()
            .map(Some)
    }

    /// An array of floats, or of integers, rounded to f32.
    ///
    /// # Errors
    /// The key holds another type.
    pub fn get_array_f32(&self, key: &str) -> Result<Option<Vec<f32>>> {
        self.convert(key, ARRAY_FLOAT, |value| match value {
            Value::Array(array) => array.floats().ok_or_else(|| value.type_name()),
            other => Err(other.type_name()),
        })
    }

    /// An array of integers of any width.
    ///
    /// # Errors
    /// The key holds another type or a number outside of i32.
    pub fn get_array_i32(&self, key: &str) -> Result<Option<Vec<i32>>> {
        self.integers(key, ARRAY_I32)
    }

    /// An array of integers of any width.
    ///
    /// # Errors
    /// The key holds another type or a number outside of u32.
    pub fn get_array_u32(&self, key: &str) -> Result<Option<Vec<u32>>> {
        self.integers(key, ARRAY_U32)
    }

    /// An array of integers of any width.
    ///
    /// # Errors
    /// The key holds another type or a negative number.
    pub fn get_array_u64(&self, key: &str) -> Result<Option<Vec<u64>>> {
        self.integers(key, ARRAY_U64)
    }

    /// An array of bools.
    ///
    /// # Errors
    /// The key holds another type.
    pub fn get_array_bool(&self, key: &str) -> Result<Option<&[bool]>> {
        self.convert(key, ARRAY_BOOL, |value| match value {
            Value::Array(Array::Bool(flags)) => Ok(flags.as_slice()),
            other => Err(other.type_name()),
        })
    }

    /// A number for each of `n` layers, stored either as one number for all or as an array of `n`.
    ///
    /// # Errors
    /// The key holds another type, a negative number or an array of another length.
    pub fn get_u64_per_layer(&self, key: &str, n: usize) -> Result<Option<Vec<u64>>> {
        if !matches!(self.get(key), Some(Value::Array(_))) {
            return Ok(self.get_u64(key)?.map(|x| vec![x; n]));
        }
        let layers = self.get_array_u64(key)?;
        match layers {
            Some(ref v) if v.len() != n => Err(self.wrong_type(
                key,
                "one integer, or one for each layer",
                format!("an array of {} numbers for {n} layers", v.len()),
            )),
            other => Ok(other),
        }
    }
}

const STR: &str = "a string";
const U64: &str = "an integer that is not negative";
const U32: &str = "an integer from 0 to 4294967295";
const FLOAT: &str = "a number";
const BOOL: &str = "a bool";
const ARRAY_STR: &str = "an array of strings";
const ARRAY_FLOAT: &str = "an array of numbers";
const ARRAY_I32: &str = "an array of 32-bit integers";
const ARRAY_U32: &str = "an array of integers from 0 to 4294967295";
const ARRAY_U64: &str = "an array of integers that are not negative";
const ARRAY_BOOL: &str = "an array of bools";

/// `require_*`: the same getters for keys that must be there.
macro_rules! require {
    ($($name:ident => $getter:ident -> $type:ty, $expected:expr;)*) => {
        impl Metadata {
            $(
                #[doc = concat!("Like [`", stringify!($getter), "`](Self::", stringify!($getter), "), for a key that must be there.")]
                ///
                /// # Errors
                /// Also when the key is absent.
                pub fn $name(&self, key: &str) -> Result<$type> {
                    self.$getter(key)?.ok_or_else(|| self.missing(key, $expected))
                }
            )*
        }
    };
}

require! {
    require_str => get_str -> &str, STR;
    require_u64 => get_u64 -> u64, U64;
    require_u32 => get_u32 -> u32, U32;
    require_usize => get_usize -> usize, U64;
    require_f64 => get_f64 -> f64, FLOAT;
    require_f32 => get_f32 -> f32, FLOAT;
    require_bool => get_bool -> bool, BOOL;
    require_array_text => get_array_text -> &[Text], ARRAY_STR;
    require_array_str => get_array_str -> Vec<&str>, ARRAY_STR;
    require_array_f32 => get_array_f32 -> Vec<f32>, ARRAY_FLOAT;
    require_array_i32 => get_array_i32 -> Vec<i32>, ARRAY_I32;
    require_array_u32 => get_array_u32 -> Vec<u32>, ARRAY_U32;
    require_array_u64 => get_array_u64 -> Vec<u64>, ARRAY_U64;
    require_array_bool => get_array_bool -> &[bool], ARRAY_BOOL;
}
