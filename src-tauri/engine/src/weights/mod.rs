//! Weights of a checkpoint by their Hugging Face names, from a safetensors folder or a GGUF file, always memory-mapped.
//!
//! A model asks for `model.layers.3.self_attn.q_proj` with the shape that its hyper-parameters demand; where the bytes lie, in which
//! format, and how a GGUF names or permutes them is decided here.

mod gguf_source;
mod names;
mod safetensors_source;

use std::path::{Path, PathBuf};

use candle_core::{DType, Device, Tensor};
use headstart_kernels::ActivationPrecision;

pub use gguf_source::GgufSource;
pub use safetensors_source::SafetensorsSource;

use crate::{
    error::ModelError,
    layers::{Embedding, Linear, PackedMatrix},
};

/// How the products of quantized weights are computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Precision {
    /// Fast: on CPUs, activations are rounded to 8 bits in blocks of 32 (as all peers do).
    #[default]
    Fast,
    /// Exact: weights are widened to f32 at load and multiplied by unrounded activations. Several times the memory; for references.
    Exact,
}

/// Whether a linear layer has a bias.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Bias {
    /// It must have one.
    Required,
    /// It may have one; used when present.
    Optional,
    /// It has none.
    None,
}

/// One tensor as `inspect` shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TensorSummary {
    /// Name as stored.
    pub name: String,
    /// Shape, outermost dimension first.
    pub shape: Vec<usize>,
    /// Storage type, for example `BF16` or `Q4_1`.
    pub dtype: String,
    /// Bytes in the file.
    pub bytes: u64,
}

/// The format behind [`Weights`].
#[derive(Debug)]
pub enum Source {
    /// A folder of safetensors.
    Safetensors(SafetensorsSource),
    /// A GGUF file, possibly split.
    Gguf(GgufSource),
}

/// Weights of one checkpoint, to be placed on one device.
#[derive(Debug)]
pub struct Weights {
    source: Source,
    device: Device,
    dtype: DType,
    precision: Precision,
}

impl Weights {
    /// Weights that will be placed on `device`, floats as `dtype`.
    pub fn new(source: Source, device: Device, dtype: DType, precision: Precision) -> Self {
        Self {
            source,
            device,
            dtype,
            precision,
        }
    }

    /// The device that tensors are placed on.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// The dtype of activations, norms and dense weights.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// The file or folder that messages name.
    pub fn path(&self) -> &Path {
        match &self.source {
            Source::Safetensors(source) => source.path(),
            Source::Gguf(source) => source.path(),
        }
    }

    /// True when `name` (without `.weight`) has a weight.
    pub fn contains(&self, name: &str) -> bool {
        match &self.source {
            Source::Safetensors(source) => source.contains(&format!("{name}.weight")),
            Source::Gguf(source) => source.contains(name, "weight"),
        }
    }

    /// A dense tensor `name` (`...weight` or `...bias`) of exactly `shape`, in the compute dtype.
    ///
    /// # Errors
    /// When it is missing, has another shape, or is stored in a type that cannot be read.
    pub fn tensor(&self, name: &str, suffix: &str, shape: &[usize]) -> Result<Tensor, ModelError> {
        let tensor = match &self.source {
            Source::Safetensors(source) => {
                source.dense(&format!("{name}.{suffix}"), shape, self.dtype, &self.device)?
            }
            Source::Gguf(source) => source.dense(name, suffix, shape, self.dtype, &self.device)?,
        };
        Ok(tensor)
    }

    /// The weight of a norm, `[size]`.
    ///
    /// # Errors
    /// As [`Weights::tensor`].
    pub fn norm(&self, name: &str, size: usize) -> Result<Tensor, ModelError> {
        self.tensor(name, "weight", &[size])
    }

    /// A linear layer of `[outputs, inputs]`.
    ///
    /// # Errors
    /// As [`Weights::tensor`].
    pub fn linear(
        &self,
        name: &str,
        outputs: usize,
        inputs: usize,
        bias: Bias,
    ) -> Result<Linear, ModelError> {
        let has_bias = match &self.source {
            Source::Safetensors(source) => source.contains(&format!("{name}.bias")),
            Source::Gguf(source) => source.contains(name, "bias"),
        };
        let bias = match bias {
            Bias::Required => Some(self.tensor(name, "bias", &[outputs])?),
            Bias::Optional if has_bias => Some(self.tensor(name, "bias", &[outputs])?),
            _ => None,
        };
        match self.packed(name, outputs, inputs, ActivationPrecision::Int8)? {
            Some(matrix) => Ok(Linear::packed(matrix, bias, self.dtype)),
            None => Ok(Linear::dense(
                self.tensor(name, "weight", &[outputs, inputs])?,
                bias,
            )),
        }
    }

    /// An embedding of `[vocabulary, hidden]`, or an output head of that shape.
    ///
    /// As a head it multiplies unrounded activations: it runs for few rows and waits for memory, so that costs little, and the logits
    /// gain most from it.
    ///
    /// # Errors
    /// As [`Weights::tensor`].
    pub fn embedding(
        &self,
        name: &str,
        vocabulary: usize,
        hidden: usize,
    ) -> Result<Embedding, ModelError> {
        match self.packed(name, vocabulary, hidden, ActivationPrecision::F32)? {
            Some(matrix) => Ok(Embedding::packed(matrix, self.dtype)),
            None => Ok(Embedding::dense(self.tensor(
                name,
                "weight",
                &[vocabulary, hidden],
            )?)),
        }
    }

    fn packed(
        &self,
        name: &str,
        rows: usize,
        columns: usize,
        activations: ActivationPrecision,
    ) -> Result<Option<PackedMatrix>, ModelError> {
        match &self.source {
            Source::Safetensors(_) => Ok(None),
            Source::Gguf(source) => source.quantized(
                name,
                &[rows, columns],
                self.precision,
                activations,
                &self.device,
            ),
        }
    }

    /// Rows of `name`: the vocabulary size of an embedding whose configuration does not say.
    pub fn rows(&self, name: &str) -> Option<usize> {
        match &self.source {
            Source::Safetensors(source) => source.shape(&format!("{name}.weight")),
            Source::Gguf(source) => source.shape(name, "weight"),
        }
        .and_then(|shape| shape.first().copied())
    }

    /// Llama 3's per-dimension frequency divisors, which GGUFs carry as a tensor instead of metadata.
    ///
    /// # Errors
    /// When the tensor is there with another shape.
    pub fn rope_frequency_factors(&self, half_dim: usize) -> Result<Option<Vec<f32>>, ModelError> {
        match &self.source {
            Source::Safetensors(_) => Ok(None),
            Source::Gguf(source) => source.rope_frequency_factors(half_dim),
        }
    }

    /// All tensors of the checkpoint in file order.
    pub fn summaries(&self) -> Vec<TensorSummary> {
        match &self.source {
            Source::Safetensors(source) => source.summaries(),
            Source::Gguf(source) => source.summaries(),
        }
    }
}

/// The error for a tensor of the wrong shape.
pub(crate) fn wrong_shape(
    path: &Path,
    name: &str,
    expected: &[usize],
    found: &[usize],
) -> ModelError {
    ModelError::corrupt(
        path,
        format!(
            "tensor \"{name}\" has the shape {found:?}, but the configuration asks for {expected:?}"
        ),
    )
}

/// The error for a tensor that is not there.
pub(crate) fn missing_tensor(path: impl Into<PathBuf>, name: &str) -> ModelError {
    ModelError::corrupt(path, format!("tensor \"{name}\" is missing"))
}
