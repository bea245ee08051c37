//! A GGUF file as a source of weights.

use std::{borrow::Cow, path::Path};

use candle_core::{
    DType, Device, Tensor,
    quantized::{GgmlDType, QStorage, QTensor},
};

use headstart_kernels::{ActivationPrecision, GgufQuant};

use super::{GgufRows, Precision, TensorSummary, missing_tensor, names::gguf_name, wrong_shape};
use crate::{
    error::ModelError,
    gguf::{GgmlType, GgufFile, TensorInfo},
    layers::{Linear, PackedMatrix},
};

/// Weights of an opened GGUF.
#[derive(Debug)]
pub struct GgufSource {
    file: GgufFile,
    rows: GgufRows,
}

impl GgufSource {
    /// Wraps a file whose converter stored rows as `rows` says.
    pub fn new(file: GgufFile, rows: GgufRows) -> Self {
        Self { file, rows }
    }

    /// The file.
    pub fn path(&self) -> &Path {
        self.file.path()
    }

    fn info(&self, name: &str, suffix: &str) -> Option<&TensorInfo> {
        self.file.tensor(&self.stored_name(name, suffix)?)
    }

    /// The stored name of `name.suffix`; an empty suffix is for parameters that are no module's weight.
    fn stored_name(&self, name: &str, suffix: &str) -> Option<String> {
        let hybrid = matches!(self.rows, GgufRows::TiledValueHeads(_));
        let stored = gguf_name(name, hybrid)?;
        Some(if suffix.is_empty() {
            stored
        } else {
            format!("{stored}.{suffix}")
        })
    }

    /// True when the tensor is there.
    pub fn contains(&self, name: &str, suffix: &str) -> bool {
        self.info(name, suffix).is_some()
    }

    /// The shape of a tensor, outermost first.
    pub fn shape(&self, name: &str, suffix: &str) -> Option<Vec<usize>> {
        self.info(name, suffix).map(|info| info.shape().to_vec())
    }

    fn checked(
        &self,
        name: &str,
        suffix: &str,
        shape: &[usize],
    ) -> Result<&TensorInfo, ModelError> {
        let info = self.info(name, suffix).ok_or_else(|| {
            missing_tensor(
                self.path(),
                &self
                    .stored_name(name, suffix)
                    .unwrap_or_else(|| name.to_string()),
            )
        })?;
        if without_leading_ones(info.shape()) != without_leading_ones(shape) {
            return Err(wrong_shape(self.path(), info.name(), shape, info.shape()));
        }
        Ok(info)
    }

    /// The bytes of a tensor, rows in the order that the engine's layers expect.
    fn bytes(&self, name: &str, info: &TensorInfo) -> Cow<'_, [u8]> {
        let data = self.file.data(info);
        let rows = info.shape().first().copied().unwrap_or(0);
        match self.rows.order(name, rows) {
            Some(order) if data.len().is_multiple_of(rows) => {
                let row_bytes = data.len() / rows;
                let mut out = Vec::with_capacity(data.len());
                for row in order {
                    out.extend_from_slice(&data[row * row_bytes..(row + 1) * row_bytes]);
                }
                Cow::Owned(out)
            }
            _ => Cow::Borrowed(data),
        }
    }

    /// Blocks of `info`'s type as a tensor of the library.
    fn blocks(
        &self,
        info: &TensorInfo,
        bytes: Cow<'_, [u8]>,
        shape: &[usize],
        device: &Device,
    ) -> Result<QTensor, ModelError> {
        let dtype = candle_dtype(info.ggml_type()).ok_or_else(|| {
            ModelError::unsupported(
                self.path(),
                format!("the type {} of tensor \"{}\"", info.ggml_type().name(), info.name()),
                "F32, F16, BF16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q8_1, Q2_K, Q3_K, Q4_K, Q5_K, Q6_K, Q8_K",
            )
        })?;
        QStorage::from_data(aligned(bytes), device, dtype)
            .and_then(|storage| QTensor::new(storage, shape))
            .map_err(|e| ModelError::device(self.path(), e))
    }

    fn floats(
        &self,
        info: &TensorInfo,
        bytes: Cow<'_, [u8]>,
        shape: &[usize],
        dtype: DType,
        device: &Device,
    ) -> Result<Tensor, ModelError> {
        self.blocks(info, bytes, shape, &Device::Cpu)?
            .dequantize(&Device::Cpu)
            .and_then(|tensor| tensor.to_dtype(dtype))
            .and_then(|tensor| tensor.to_device(device))
            .map_err(|e| ModelError::device(self.path(), e))
    }

    /// Packs a matrix for the device; `None` when it is stored as floats or exact products are wanted.
    fn pack(
        &self,
        info: &TensorInfo,
        bytes: Cow<'_, [u8]>,
        (rows, columns): (usize, usize),
        precision: Precision,
        activations: ActivationPrecision,
        device: &Device,
    ) -> Result<Option<PackedMatrix>, ModelError> {
        if !info.ggml_type().is_quantized() || precision == Precision::Exact {
            return Ok(None);
        }
        let quant = candle_dtype(info.ggml_type()).and_then(GgufQuant::from_candle);
        if device.is_cpu()
            && let Some(quant) = quant
        {
            let matrix = headstart_kernels::PackedMatrix::from_gguf(quant, &bytes, rows, columns)
                .map_err(|e| ModelError::device(self.path(), e))?;
            return Ok(Some(PackedMatrix::kernel(
                matrix.with_precision(activations),
            )));
        }
        let tensor = self.blocks(info, bytes, &[rows, columns], device)?;
        Ok(Some(PackedMatrix::stock(tensor)))
    }

    /// Reads one tensor of exactly `shape` as floats, dequantizing when needed.
    ///
    /// # Errors
    /// When it is missing, has another shape, or is of an unsupported type.
    pub fn dense(
        &self,
        name: &str,
        suffix: &str,
        shape: &[usize],
        dtype: DType,
        device: &Device,
    ) -> Result<Tensor, ModelError> {
        let info = self.checked(name, suffix, shape)?;
        self.floats(info, self.bytes(name, info), shape, dtype, device)
    }

    /// Reads a parameter that is no module's weight, of exactly `shape`. `A_log` is stored as `-exp(A_log)`.
    ///
    /// # Errors
    /// As [`GgufSource::dense`], and when a decay has no logarithm.
    pub fn parameter(
        &self,
        name: &str,
        shape: &[usize],
        dtype: DType,
        device: &Device,
    ) -> Result<Tensor, ModelError> {
        if !name.ends_with(".A_log") {
            return self.dense(name, "", shape, dtype, device);
        }
        let stored = self.dense(name, "", shape, DType::F32, &Device::Cpu)?;
        let error = |e| ModelError::device(self.path(), e);
        let values = stored
            .flatten_all()
            .and_then(|values| values.to_vec1::<f32>())
            .map_err(error)?;
        if values.iter().any(|a| !a.is_finite() || *a > 0.0) {
            let stored = self.stored_name(name, "").unwrap_or_default();
            return Err(ModelError::corrupt(
                self.path(),
                format!("tensor \"{stored}\" holds values that are not negative: no decay rates"),
            ));
        }
        stored
            .neg()
            .and_then(|rates| rates.log()?.to_dtype(dtype)?.to_device(device))
            .map_err(error)
    }

    /// For each block of columns of the stored `ssm_out`, the value head as trained; `None` when the orders are the same.
    pub(crate) fn value_head_order(&self) -> Option<Vec<u32>> {
        match &self.rows {
            GgufRows::TiledValueHeads(sizes) => sizes.trained_heads(),
            _ => None,
        }
    }

    /// Reads one matrix in its packed form; `None` when it is stored as floats or exact products are wanted. `activations`: how our
    /// kernels keep what the matrix is multiplied by.
    ///
    /// # Errors
    /// As [`GgufSource::dense`].
    pub(crate) fn quantized(
        &self,
        name: &str,
        shape: &[usize; 2],
        precision: Precision,
        activations: ActivationPrecision,
        device: &Device,
    ) -> Result<Option<PackedMatrix>, ModelError> {
        let info = self.checked(name, "weight", shape)?;
        let bytes = self.bytes(name, info);
        self.pack(
            info,
            bytes,
            (shape[0], shape[1]),
            precision,
            activations,
            device,
        )
    }

    /// One expert's projection out of a stacked tensor `[experts, outputs, inputs]`, or out of one that holds gate rows before up rows,
    /// `[experts, 2 * outputs, inputs]`.
    ///
    /// # Errors
    /// As [`GgufSource::dense`].
    pub(crate) fn expert(
        &self,
        name: &str,
        (expert, experts): (usize, usize),
        (outputs, inputs): (usize, usize),
        precision: Precision,
        dtype: DType,
        device: &Device,
    ) -> Result<Linear, ModelError> {
        let fused = name
            .rsplit_once('.')
            .filter(|(_, projection)| *projection != "down_proj")
            .map(|(prefix, _)| format!("{prefix}.gate_up_proj"))
            .filter(|fused| !self.contains(name, "weight") && self.contains(fused, "weight"));
        let (stored, parts, part) = match &fused {
            Some(fused) => (fused.as_str(), 2, usize::from(name.ends_with("up_proj"))),
            None => (name, 1, 0),
        };
        let info = self.checked(stored, "weight", &[experts, parts * outputs, inputs])?;
        let data = self.file.data(info);
        let size = data.len() / (experts * parts);
        let first = (expert * parts + part) * size;
        let bytes = Cow::Borrowed(&data[first..first + size]);
        let activations = ActivationPrecision::Int8;
        match self.pack(
            info,
            bytes.clone(),
            (outputs, inputs),
            precision,
            activations,
            device,
        )? {
            Some(matrix) => Ok(Linear::packed(matrix, None, dtype)),
            None => {
                let weight = self.floats(info, bytes, &[outputs, inputs], dtype, device)?;
                Ok(Linear::dense(weight, None))
            }
        }
    }

    /// `rope_freqs.weight`: divisors of the inverse frequencies.
    ///
    /// # Errors
    /// When it has another length than `half_dim` or holds a value that cannot divide.
    pub fn rope_frequency_factors(&self, half_dim: usize) -> Result<Option<Vec<f32>>, ModelError> {
        let Some(info) = self.file.tensor("rope_freqs.weight") else {
            return Ok(None);
        };
        if info.shape() != [half_dim] {
            return Err(wrong_shape(
                self.path(),
                info.name(),
                &[half_dim],
                info.shape(),
            ));
        }
        let bytes = Cow::Borrowed(self.file.data(info));
        let factors = self
            .floats(info, bytes, &[half_dim], DType::F32, &Device::Cpu)?
            .to_vec1::<f32>()
            .map_err(|e| ModelError::device(self.path(), e))?;
        if factors.iter().any(|f| !f.is_finite() || *f <= 0.0) {
            return Err(ModelError::corrupt(
                self.path(),
                "tensor \"rope_freqs.weight\" holds values that are not positive",
            ));
        }
        Ok(Some(factors))
    }

    /// All tensors.
    pub fn summaries(&self) -> Vec<TensorSummary> {
        self.file
            .tensors()
            .map(|info| TensorSummary {
                name: info.name().to_string(),
                shape: info.shape().to_vec(),
                dtype: info.ggml_type().name().to_string(),
                bytes: self.file.data(info).len() as u64,
                parameters: info.element_count() as u64,
            })
            .collect()
    }
}

/// Converters of different ages write vectors as `[n]` or `[1, n]`.
fn without_leading_ones(shape: &[usize]) -> &[usize] {
    let ones = shape.iter().take_while(|n| **n == 1).count();
    &shape[ones..]
}

/// candle reinterprets the bytes as blocks and asserts their alignment. Split files and odd alignments may break it: those are copied.
fn aligned(bytes: Cow<'_, [u8]>) -> Cow<'_, [u8]> {
    // The widest field of any block is a 32-bit float.
    const ALIGNMENT: usize = 4;
    if (bytes.as_ptr() as usize).is_multiple_of(ALIGNMENT) {
        return bytes;
    }
    Cow::Owned(bytes.into_owned())
}

fn candle_dtype(ggml: GgmlType) -> Option<GgmlDType> {
    Some(match ggml {
        GgmlType::F32 => GgmlDType::F32,
        GgmlType::F16 => GgmlDType::F16,
        GgmlType::BF16 => GgmlDType::BF16,
        GgmlType::Q4_0 => GgmlDType::Q4_0,
        GgmlType::Q4_1 => GgmlDType::Q4_1,
        GgmlType::Q5_0 => GgmlDType::Q5_0,
        GgmlType::Q5_1 => GgmlDType::Q5_1,
        GgmlType::Q8_0 => GgmlDType::Q8_0,
        GgmlType::Q8_1 => GgmlDType::Q8_1,
        GgmlType::Q2_K => GgmlDType::Q2K,
        GgmlType::Q3_K => GgmlDType::Q3K,
        GgmlType::Q4_K => GgmlDType::Q4K,
        GgmlType::Q5_K => GgmlDType::Q5K,
        GgmlType::Q6_K => GgmlDType::Q6K,
        GgmlType::Q8_K => GgmlDType::Q8K,
        _ => return None,
    })
}
