//! Weights of a checkpoint by their Hugging Face names, from a safetensors folder or a GGUF file, always memory-mapped.
//!
//! A model asks for `model.layers.3.self_attn.q_proj` with the shape that its hyper-parameters demand; where the bytes lie, in which
//! format, and how a file names, permutes or shifts them is decided here.

mod gguf;
mod gguf_rows;
mod names;
mod safetensors;

use std::path::{Path, PathBuf};

use candle_core::{DType, Device, Tensor};
use headstart_kernels::ActivationPrecision;

pub use gguf::GgufSource;
pub use gguf_rows::{GgufRows, TiledValueHeads};
pub(crate) use safetensors::Slice;
pub use safetensors::{AffineFormat, QuantizationConfig, SafetensorsSource};

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
    /// Exact: weights are widened to floats at load and multiplied by unrounded activations. Several times the memory; for references.
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

/// One projection of an expert.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExpertProjection {
    /// `gate_proj [intermediate, hidden]`.
    Gate,
    /// `up_proj [intermediate, hidden]`.
    Up,
    /// `down_proj [hidden, intermediate]`.
    Down,
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
    /// Weights in it; 0 for what only describes a packed tensor.
    pub parameters: u64,
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

    fn has(&self, name: &str, suffix: &str) -> bool {
        match &self.source {
            Source::Safetensors(source) => source.contains(&format!("{name}.{suffix}")),
            Source::Gguf(source) => source.contains(name, suffix),
        }
    }

    /// True when `name` (without `.weight`) has a weight.
    pub fn contains(&self, name: &str) -> bool {
        self.has(name, "weight")
    }

    /// A dense tensor `name.suffix` of exactly `shape`, in the compute dtype.
    ///
    /// # Errors
    /// When it is missing, has another shape, or is stored in a type that cannot be read.
    pub fn tensor(&self, name: &str, suffix: &str, shape: &[usize]) -> Result<Tensor, ModelError> {
        match &self.source {
            Source::Safetensors(source) => {
                source.dense(&format!("{name}.{suffix}"), shape, self.dtype, &self.device)
            }
            Source::Gguf(source) => source.dense(name, suffix, shape, self.dtype, &self.device),
        }
    }

    /// A parameter that is no module's weight, such as `...A_log`, in a dtype of its own.
    ///
    /// # Errors
    /// As [`Weights::tensor`].
    pub fn parameter(
        &self,
        name: &str,
        shape: &[usize],
        dtype: DType,
    ) -> Result<Tensor, ModelError> {
        match &self.source {
            Source::Safetensors(source) => source.dense(name, shape, dtype, &self.device),
            Source::Gguf(source) => source.parameter(name, shape, dtype, &self.device),
        }
    }

    /// The order in which GatedDeltaNet's value heads must enter its output projection, whose columns keep the file's order; `None`
    /// when that is the one as trained. (Columns of packed blocks cannot be moved.)
    ///
    /// # Errors
    /// When the device fails.
    pub fn value_head_order(&self) -> Result<Option<Tensor>, ModelError> {
        let order = match &self.source {
            Source::Safetensors(_) => None,
            Source::Gguf(source) => source.value_head_order(),
        };
        order
            .map(|order| Tensor::new(order, &self.device))
            .transpose()
            .map_err(|e| ModelError::device(self.path(), e))
    }

    /// The weight of a norm, `[size]`.
    ///
    /// # Errors
    /// As [`Weights::tensor`].
    pub fn norm(&self, name: &str, size: usize) -> Result<Tensor, ModelError> {
        self.tensor(name, "weight", &[size])
    }

    /// The weight of a zero-centred norm, `[size]`, with the 1 added that checkpoints as trained leave out.
    ///
    /// Converted checkpoints have it in their trunk. Bundles that gained an MTP head afterwards may lack it in the head alone, so there
    /// the mean of the weight decides: around 0 it is missing, around 1 it is there.
    ///
    /// # Errors
    /// As [`Weights::tensor`].
    pub fn centred_norm(&self, name: &str, size: usize) -> Result<Tensor, ModelError> {
        let weight = match &self.source {
            Source::Safetensors(source) => {
                source.dense(&format!("{name}.weight"), &[size], DType::F32, &self.device)?
            }
            // The converter to GGUF adds the 1.
            Source::Gguf(_) => return self.norm(name, size),
        };
        let Source::Safetensors(source) = &self.source else {
            return Ok(weight);
        };
        let shift = |weight: Tensor| -> candle_core::Result<Tensor> {
            let centred = if source.is_raw() {
                true
            } else if name.starts_with("mtp.") {
                weight.mean_all()?.to_scalar::<f32>()? < 0.5
            } else {
                false
            };
            let weight = if centred { (weight + 1.0)? } else { weight };
            weight.to_dtype(self.dtype)
        };
        shift(weight).map_err(|e| ModelError::device(self.path(), e))
    }

    /// The taps of a depthwise causal convolution, `[channels, kernel]`, from `[channels, 1, kernel]` or MLX's `[channels, kernel, 1]`.
    ///
    /// # Errors
    /// As [`Weights::tensor`].
    pub fn depthwise_conv(
        &self,
        name: &str,
        channels: usize,
        kernel: usize,
    ) -> Result<Tensor, ModelError> {
        let shape = match &self.source {
            Source::Safetensors(source)
                if source
                    .shape(&format!("{name}.weight"))
                    .is_some_and(|s| s.last() == Some(&1)) =>
            {
                vec![channels, kernel, 1]
            }
            Source::Safetensors(_) => vec![channels, 1, kernel],
            Source::Gguf(_) => vec![channels, kernel],
        };
        self.tensor(name, "weight", &shape)?
            .reshape((channels, kernel))
            .map_err(|e| ModelError::device(self.path(), e))
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
        let bias = match bias {
            Bias::Required => Some(self.tensor(name, "bias", &[outputs])?),
            Bias::Optional if self.has(name, "bias") => {
                Some(self.tensor(name, "bias", &[outputs])?)
            }
            _ => None,
        };
        Ok(
            match self.matrix(name, (outputs, inputs), ActivationPrecision::Int8)? {
                Matrix::Packed(matrix) => Linear::packed(matrix, bias, self.dtype),
                Matrix::Dense(weight) => Linear::dense(weight, bias),
            },
        )
    }

    /// An embedding of `[vocabulary, hidden]`, or an output head of that shape.
    ///
    /// As a head it takes activations at 15 bits instead of 8: it runs for few rows and waits for memory, so that costs little, and logits
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
        Ok(
            match self.matrix(name, (vocabulary, hidden), ActivationPrecision::Int8Twice)? {
                Matrix::Packed(matrix) => Embedding::packed(matrix, self.dtype),
                Matrix::Dense(weight) => Embedding::dense(weight),
            },
        )
    }

    fn matrix(
        &self,
        name: &str,
        shape: (usize, usize),
        activations: ActivationPrecision,
    ) -> Result<Matrix, ModelError> {
        match &self.source {
            Source::Safetensors(source) => self.stored_matrix(
                source,
                name,
                &format!("{name}.weight"),
                Slice::whole(shape.0),
                shape,
                activations,
            ),
            Source::Gguf(source) => {
                let expected = [shape.0, shape.1];
                match source.quantized(
                    name,
                    &expected,
                    self.precision,
                    activations,
                    &self.device,
                )? {
                    Some(matrix) => Ok(Matrix::Packed(matrix)),
                    None => Ok(Matrix::Dense(self.tensor(name, "weight", &expected)?)),
                }
            }
        }
    }

    /// A matrix of a safetensors folder: packed where it is stored so and can stay so, else as floats.
    fn stored_matrix(
        &self,
        source: &SafetensorsSource,
        module: &str,
        tensor: &str,
        slice: Slice,
        shape: (usize, usize),
        activations: ActivationPrecision,
    ) -> Result<Matrix, ModelError> {
        let Some(packed) = source.affine(module, slice, shape, activations)? else {
            let weight = source.matrix(tensor, slice, shape, self.dtype, &self.device)?;
            return Ok(Matrix::Dense(weight));
        };
        if self.device.is_cpu() && self.precision == Precision::Fast {
            return Ok(Matrix::Packed(PackedMatrix::kernel(packed)));
        }
        let rows: Vec<u32> = (0..shape.0 as u32).collect();
        packed
            .dequantize_rows(&rows, self.dtype)
            .and_then(|weight| weight.to_device(&self.device))
            .map(Matrix::Dense)
            .map_err(|e| ModelError::device(self.path(), e))
    }

    /// One projection of one of `experts` experts of `{prefix}`, `[outputs, inputs]`. The layouts: MLX's stacked `switch_mlp`, one
    /// module an expert, and Hugging Face's fused `experts.gate_up_proj` (gate rows before up rows) and `experts.down_proj`.
    ///
    /// # Errors
    /// As [`Weights::tensor`].
    pub fn expert(
        &self,
        prefix: &str,
        projection: ExpertProjection,
        (expert, experts): (usize, usize),
        (outputs, inputs): (usize, usize),
    ) -> Result<Linear, ModelError> {
        let name = match projection {
            ExpertProjection::Gate => "gate_proj",
            ExpertProjection::Up => "up_proj",
            ExpertProjection::Down => "down_proj",
        };
        let source = match &self.source {
            Source::Safetensors(source) => source,
            Source::Gguf(source) => {
                return source.expert(
                    &format!("{prefix}.experts.{name}"),
                    (expert, experts),
                    (outputs, inputs),
                    self.precision,
                    self.dtype,
                    &self.device,
                );
            }
        };
        let single = format!("{prefix}.experts.{expert}.{name}");
        if self.contains(&single) {
            return self.linear(&single, outputs, inputs, Bias::None);
        }
        let stacked = format!("{prefix}.switch_mlp.{name}");
        let (module, tensor, rows) = if self.contains(&stacked) {
            (stacked.clone(), format!("{stacked}.weight"), (0, outputs))
        } else if projection == ExpertProjection::Down {
            let fused = format!("{prefix}.experts.down_proj");
            (fused.clone(), fused, (0, outputs))
        } else {
            let fused = format!("{prefix}.experts.gate_up_proj");
            let first = if projection == ExpertProjection::Up {
                outputs
            } else {
                0
            };
            (fused.clone(), fused, (first, 2 * outputs))
        };
        let slice = Slice {
            part: Some((expert, experts)),
            rows,
        };
        let shape = (outputs, inputs);
        Ok(
            match self.stored_matrix(
                source,
                &module,
                &tensor,
                slice,
                shape,
                ActivationPrecision::Int8,
            )? {
                Matrix::Packed(matrix) => Linear::packed(matrix, None, self.dtype),
                Matrix::Dense(weight) => Linear::dense(weight, None),
            },
        )
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

/// A matrix in the form that a layer will hold.
enum Matrix {
    Packed(PackedMatrix),
    Dense(Tensor),
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
