//! Golden data: logits that transformers computed in float32 on the same weights.

use std::{collections::HashMap, path::Path};

use candle_core::{DType, Device, Tensor};

/// Tensors of one golden file.
#[derive(Debug)]
pub struct Golden(HashMap<String, Tensor>);

impl Golden {
    /// Reads a safetensors file.
    ///
    /// # Panics
    /// When it cannot be read: the fixtures are part of the repository.
    pub fn read(path: &Path) -> Self {
        match candle_core::safetensors::load(path, &Device::Cpu) {
            Ok(tensors) => Self(tensors),
            Err(error) => panic!("{}: {error}", path.display()),
        }
    }

    /// One tensor.
    ///
    /// # Panics
    /// When it is not there.
    pub fn tensor(&self, name: &str) -> &Tensor {
        match self.0.get(name) {
            Some(tensor) => tensor,
            None => panic!("no tensor {name}"),
        }
    }

    /// Names of all tensors.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.0.keys().map(String::as_str)
    }

    /// One list of token ids or positions.
    ///
    /// # Panics
    /// When it is not there or not integers.
    pub fn ids(&self, name: &str) -> Vec<u32> {
        let ids = self
            .tensor(name)
            .to_dtype(DType::I64)
            .and_then(|tensor| tensor.flatten_all()?.to_vec1::<i64>());
        match ids {
            Ok(ids) => ids.into_iter().map(|id| id as u32).collect(),
            Err(error) => panic!("{name}: {error}"),
        }
    }
}

/// The largest absolute difference of two tensors of the same shape.
///
/// # Panics
/// When the shapes differ or a value is not finite.
pub fn max_difference(found: &Tensor, expected: &Tensor) -> f32 {
    assert_eq!(found.dims(), expected.dims());
    let difference =
        (found - expected).and_then(|d| d.abs()?.flatten_all()?.max(0)?.to_scalar::<f32>());
    match difference {
        Ok(difference) => {
            assert!(difference.is_finite());
            difference
        }
        Err(error) => panic!("{error}"),
    }
}
