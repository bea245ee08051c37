//! A GGUF file as a source of weights.

use std::{borrow::Cow, path::Path};

use candle_core::{
    DType, Device, Tensor,
    quantized::{GgmlDType, QStorage, QTensor},
};

use headstart_kernels::{ActivationPrecision, GgufQuant};

use super::{Precision, TensorSummary, missing_tensor, names::gguf_name, wrong_shape};
use crate::{
    error::ModelError,
    gguf::{GgmlType, GgufFile, TensorInfo},
    layers::{Linear, PackedMatrix},
};

/// Weights of an opened GGUF.
#[derive(Debug)]
pub struct GgufSource {
    file: GgufFile,
    /// Query and key heads and their width when the rows of `q_proj` and `k_proj` are stored interleaved (see [`row_order`]).
    interleaved_heads: Option<(usize, usize)>,
}

impl GgufSource {
    /// Wraps a file. `interleaved_heads`: the numbers of query and key heads when the converter reordered their rows (the `llama`
    /// architecture: its rotary embedding turns neighbouring pairs, ours turns halves).
    pub fn new(file: GgufFile, interleaved_heads: Option<(usize, usize)>) -> Self {
        Self {
            file,
            interleaved_heads,
        }
    }

    /// The file.
    pub fn path(&self) -> &Path {
        self.file.path()
    }

    fn info(&self, name: &str, suffix: &str) -> Option<&TensorInfo> {
        self.file.tensor(&format!("{}.{suffix}", gguf_name(name)?))
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
                &gguf_name(name).map_or(name.to_string(), |n| format!("{n}.{suffix}")),
            )
        })?;
        if info.shape() != shape {
            return Err(wrong_shape(self.path(), info.name(), shape, info.shape()));
        }
        Ok(info)
    }

    /// The bytes of a tensor, rows in the order that the engine's layers expect.
    fn bytes(&self, name: &str, info: &TensorInfo) -> Cow<'_, [u8]> {
        let data = self.file.data(info);
        let heads = self.interleaved_heads.and_then(|(queries, keys)| {
            if name.ends_with("self_attn.q_proj") {
                Some(queries)
            } else if name.ends_with("self_attn.k_proj") {
                Some(keys)
            } else {
                None
            }
        });
        let rows = info.shape().first().copied().unwrap_or(0);
        match heads {
            Some(heads)
                if heads > 0
                    && rows > 0
                    && rows.is_multiple_of(2 * heads)
                    && data.len().is_multiple_of(rows) =>
            {
                let row_bytes = data.len() / rows;
                let mut out = Vec::with_capacity(data.len());
                for row in row_order(rows, heads) {
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

    /// One expert's projection out of a stacked tensor `[experts, outputs, inputs]`.
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
        let info = self.checked(name, "weight", &[experts, outputs, inputs])?;
        let data = self.file.data(info);
        let size = data.len() / experts;
        let bytes = Cow::Borrowed(&data[expert * size..(expert + 1) * size]);
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

/// For each row of a rotate-half projection, the stored row: the converter turned head rows `[2, half]` into `[half, 2]`.
fn row_order(rows: usize, heads: usize) -> impl Iterator<Item = usize> {
    let head_dim = rows / heads;
    let half = head_dim / 2;
    (0..rows).map(move |row| {
        let (head, within) = (row / head_dim, row % head_dim);
        let (part, i) = (within / half, within % half);
        head * head_dim + 2 * i + part
    })
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

#[cfg(test)]
mod tests {
    use super::row_order;

    #[test]
    fn rows_of_two_heads_are_unzipped() {
        let order: Vec<usize> = row_order(8, 2).collect();
        assert_eq!(order, [0, 2, 1, 3, 4, 6, 5, 7]);
        let order: Vec<usize> = row_order(6, 1).collect();
        assert_eq!(order, [0, 2, 4, 1, 3, 5]);
    }
}
