//! The tensors of one folder, by text-model names.

use std::{
    borrow::Cow,
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use bytemuck::Pod;
use candle_core::{DType, Device, Tensor};
use headstart_kernels::{ActivationPrecision, AffineParams};
use safetensors::{Dtype, tensor::TensorInfo};

use super::{
    super::{TensorSummary, missing_tensor, wrong_shape},
    affine::{AffineFormat, QuantizationConfig},
    layout::Layout,
    shard::{Shard, files, float_dtype, open_shard},
};
use crate::error::ModelError;

/// Memory-mapped safetensors of one folder.
#[derive(Debug)]
pub struct SafetensorsSource {
    folder: PathBuf,
    shards: Vec<Shard>,
    /// Tensor name -> index of its shard.
    index: BTreeMap<String, usize>,
    layout: Layout,
    quantization: QuantizationConfig,
}

/// A matrix, or one of several that are stacked in one tensor.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Slice {
    /// Which matrix, of how many; `None` for a tensor of its own.
    pub(crate) part: Option<(usize, usize)>,
    /// Rows of the matrix in the tensor before those wanted, and rows of it in all.
    pub(crate) rows: (usize, usize),
}

impl Slice {
    /// A whole tensor with `rows` rows.
    pub(crate) fn whole(rows: usize) -> Self {
        Self {
            part: None,
            rows: (0, rows),
        }
    }

    /// The shape that the tensor must have for matrices of `columns` columns.
    fn tensor_shape(&self, columns: usize) -> Vec<usize> {
        let mut shape = vec![self.rows.1, columns];
        if let Some((_, count)) = self.part {
            shape.insert(0, count);
        }
        shape
    }

    /// The bytes of rows `start .. start + rows` of this matrix.
    fn of<'a>(&self, data: &'a [u8], rows: usize) -> &'a [u8] {
        let (part, count) = self.part.unwrap_or((0, 1));
        let row_bytes = data.len() / (count * self.rows.1).max(1);
        let first = part * self.rows.1 + self.rows.0;
        &data[first * row_bytes..(first + rows) * row_bytes]
    }
}

impl SafetensorsSource {
    /// Opens all shards of `folder`. `quantization`: MLX's declaration, where the checkpoint has one.
    ///
    /// # Errors
    /// When there is no shard, one is missing, or one is truncated or corrupt: the message names the file and the tensor.
    pub fn open(folder: &Path, quantization: QuantizationConfig) -> Result<Self, ModelError> {
        let mut shards = Vec::new();
        let mut index = BTreeMap::new();
        for path in files(folder)? {
            let shard = open_shard(path)?;
            for name in shard.tensors().into_keys() {
                if let Some(other) = index.insert(name.clone(), shards.len()) {
                    let other: &Shard = shards.get(other).unwrap_or(&shard);
                    return Err(ModelError::corrupt(
                        &shard.path,
                        format!("tensor \"{name}\" is also in {}", other.path.display()),
                    ));
                }
            }
            shards.push(shard);
        }
        let layout = Layout::detect(|name| index.contains_key(name));
        Ok(Self {
            folder: folder.to_path_buf(),
            shards,
            index,
            layout,
            quantization,
        })
    }

    /// The folder.
    pub fn path(&self) -> &Path {
        &self.folder
    }

    /// True when the tensor is there.
    pub fn contains(&self, name: &str) -> bool {
        self.index.contains_key(&self.layout.stored(name))
    }

    /// The stored shape of a tensor.
    pub fn shape(&self, name: &str) -> Option<Vec<usize>> {
        self.find(&self.layout.stored(name))
            .map(|(_, info)| info.shape.clone())
    }

    fn find(&self, stored: &str) -> Option<(&Shard, &TensorInfo)> {
        let shard = &self.shards[*self.index.get(stored)?];
        Some((shard, shard.info(stored)?))
    }

    fn require(&self, stored: &str) -> Result<(&Shard, &TensorInfo), ModelError> {
        self.find(stored)
            .ok_or_else(|| missing_tensor(&self.folder, stored))
    }

    /// The float dtype that most bytes are stored in, which decides the compute dtype on GPUs.
    pub fn main_dtype(&self) -> DType {
        let mut bytes: BTreeMap<&'static str, (usize, DType)> = BTreeMap::new();
        for shard in &self.shards {
            for info in shard.tensors().into_values() {
                if let Ok(dtype) = float_dtype(info.dtype) {
                    let size = info.data_offsets.1 - info.data_offsets.0;
                    bytes.entry(dtype.as_str()).or_insert((0, dtype)).0 += size;
                }
            }
        }
        bytes
            .into_values()
            .max_by_key(|(size, _)| *size)
            .map_or(DType::F32, |(_, dtype)| dtype)
    }

    /// Reads one float tensor of exactly `shape` as `dtype` on `device`.
    ///
    /// # Errors
    /// When it is missing, has another shape, or is not a float.
    pub fn dense(
        &self,
        name: &str,
        shape: &[usize],
        dtype: DType,
        device: &Device,
    ) -> Result<Tensor, ModelError> {
        let stored = self.layout.stored(name);
        let (shard, info) = self.require(&stored)?;
        if info.shape != shape {
            return Err(wrong_shape(&shard.path, &stored, shape, &info.shape));
        }
        self.floats(shard, &stored, info, shard.data(info), shape, dtype, device)
    }

    #[allow(clippy::too_many_arguments)]
    fn floats(
        &self,
        shard: &Shard,
        stored: &str,
        info: &TensorInfo,
        data: &[u8],
        shape: &[usize],
        dtype: DType,
        device: &Device,
    ) -> Result<Tensor, ModelError> {
        let found = float_dtype(info.dtype).map_err(|found| {
            ModelError::unsupported(
                &shard.path,
                format!("the type {found} of tensor \"{stored}\""),
                "F32, F16, BF16, F64, block-scaled F8_E4M3, and MLX's affine quantization",
            )
        })?;
        Tensor::from_raw_buffer(data, found, shape, &Device::Cpu)
            .and_then(|tensor| tensor.to_dtype(dtype))
            .and_then(|tensor| tensor.to_device(device))
            .map_err(|e| ModelError::device(&shard.path, e))
    }

    /// Reads a matrix `[rows, columns]` as floats, whatever it is stored as. `tensor`: its name, with `.weight` where it has one.
    ///
    /// # Errors
    /// When it is missing, has another shape, or is of an unsupported type.
    pub(crate) fn matrix(
        &self,
        tensor: &str,
        slice: Slice,
        (rows, columns): (usize, usize),
        dtype: DType,
        device: &Device,
    ) -> Result<Tensor, ModelError> {
        let stored = self.layout.stored(tensor);
        let (shard, info) = self.require(&stored)?;
        let expected = slice.tensor_shape(columns);
        if info.shape != expected {
            return Err(wrong_shape(&shard.path, &stored, &expected, &info.shape));
        }
        let data = slice.of(shard.data(info), rows);
        if info.dtype == Dtype::F8_E4M3 {
            let scales = self.fp8_scales(&stored, slice, (rows, columns))?;
            return dequantize_fp8(data, &scales, (rows, columns))
                .and_then(|tensor| tensor.to_dtype(dtype))
                .and_then(|tensor| tensor.to_device(device))
                .map_err(|e| ModelError::device(&shard.path, e));
        }
        self.floats(shard, &stored, info, data, &[rows, columns], dtype, device)
    }

    /// Scales of FP8 weights: one for each block of 128 x 128, `{tensor}_scale_inv`, as DeepSeek-V3 and Qwen3 store them.
    fn fp8_scales(
        &self,
        stored: &str,
        slice: Slice,
        (rows, columns): (usize, usize),
    ) -> Result<Tensor, ModelError> {
        let name = format!("{stored}_scale_inv");
        let (shard, info) = self.require(&name)?;
        let blocks = |n: usize| n.div_ceil(FP8_BLOCK);
        let scale_slice = Slice {
            part: slice.part,
            rows: (slice.rows.0 / FP8_BLOCK, blocks(slice.rows.1)),
        };
        let expected = scale_slice.tensor_shape(blocks(columns));
        if info.shape != expected || !slice.rows.0.is_multiple_of(FP8_BLOCK) {
            return Err(wrong_shape(&shard.path, &name, &expected, &info.shape));
        }
        let data = scale_slice.of(shard.data(info), blocks(rows));
        let shape = [blocks(rows), blocks(columns)];
        self.floats(shard, &name, info, data, &shape, DType::F32, &Device::Cpu)
    }

    /// Packs a matrix `[rows, columns]` stored in MLX's affine quantization; `None` when it is stored as floats.
    ///
    /// # Errors
    /// When words, scales and biases do not have the shapes that the declared bits and group size ask for.
    pub(crate) fn affine(
        &self,
        module: &str,
        slice: Slice,
        (rows, columns): (usize, usize),
        activations: ActivationPrecision,
    ) -> Result<Option<headstart_kernels::PackedMatrix>, ModelError> {
        let stored = self.layout.stored(module);
        let Some((scale_shard, scales)) = self.find(&format!("{stored}.scales")) else {
            return Ok(None);
        };
        let (shard, words) = self.require(&format!("{stored}.weight"))?;
        let (bias_shard, biases) = self.require(&format!("{stored}.biases"))?;
        let format = self.quantization.of(&stored).ok_or_else(|| {
            ModelError::corrupt(
                &shard.path,
                format!("\"{stored}\" has scales, but config.json declares no quantization for it"),
            )
        })?;
        let expected = slice.tensor_shape(columns * format.bits as usize / 32);
        let expected_scales = slice.tensor_shape(columns / format.group);
        if words.dtype != Dtype::U32
            || words.shape != expected
            || scales.shape != expected_scales
            || biases.shape != expected_scales
            || biases.dtype != scales.dtype
        {
            return Err(self.misdeclared(&shard.path, &stored, format, columns, words, scales));
        }
        let scale_bytes = slice.of(scale_shard.data(scales), rows);
        let bias_bytes = slice.of(bias_shard.data(biases), rows);
        let words = aligned::<u32>(slice.of(shard.data(words), rows));
        let pack = |scales: AffineParams<'_>, biases: AffineParams<'_>| {
            headstart_kernels::PackedMatrix::from_affine(
                format.bits,
                format.group,
                &words,
                scales,
                biases,
                rows,
                columns,
            )
        };
        let packed = match scales.dtype {
            Dtype::BF16 => pack(
                AffineParams::Bf16(&aligned(scale_bytes)),
                AffineParams::Bf16(&aligned(bias_bytes)),
            ),
            Dtype::F16 => pack(
                AffineParams::F16(&aligned(scale_bytes)),
                AffineParams::F16(&aligned(bias_bytes)),
            ),
            Dtype::F32 => pack(
                AffineParams::F32(&aligned(scale_bytes)),
                AffineParams::F32(&aligned(bias_bytes)),
            ),
            other => {
                return Err(ModelError::unsupported(
                    &scale_shard.path,
                    format!("the type {other:?} of \"{stored}.scales\""),
                    "BF16, F16, F32",
                ));
            }
        };
        packed
            .map(|matrix| Some(matrix.with_precision(activations)))
            .map_err(|e| ModelError::device(&shard.path, e))
    }

    /// The error for a module whose stored shapes contradict its declaration: most often a declaration under another prefix.
    fn misdeclared(
        &self,
        path: &Path,
        stored: &str,
        format: AffineFormat,
        columns: usize,
        words: &TensorInfo,
        scales: &TensorInfo,
    ) -> ModelError {
        let found_bits = words
            .shape
            .last()
            .map_or(0, |words| words * 32 / columns.max(1));
        let found_group = scales
            .shape
            .last()
            .map_or(0, |groups| columns / (*groups).max(1));
        let hint = self
            .quantization
            .misnamed(stored)
            .map_or(String::new(), |other| {
                format!(" The declaration of \"{other}\" may be meant for it.")
            });
        ModelError::corrupt(
            path,
            format!(
                "module \"{stored}\": expected {} bits in groups of {} as config.json declares, found {:?} {:?} and scales {:?}, which is {found_bits} bits in groups of {found_group}.{hint}",
                format.bits, format.group, words.dtype, words.shape, scales.shape
            ),
        )
    }

    /// True for a checkpoint as trained: its causal convolutions still have the shape `[channels, 1, kernel]`. Converters to MLX move
    /// that axis and, in the same step, add the 1 to zero-centred norms.
    pub(crate) fn is_raw(&self) -> bool {
        self.index
            .keys()
            .find(|name| name.ends_with("linear_attn.conv1d.weight"))
            .and_then(|name| self.find(name))
            .is_none_or(|(_, info)| info.shape.last() != Some(&1))
    }

    /// All tensors. Packed matrices are shown with the shape that they unpack to.
    pub fn summaries(&self) -> Vec<TensorSummary> {
        self.index
            .keys()
            .filter_map(|name| {
                let (_, info) = self.find(name)?;
                let mut summary = TensorSummary {
                    name: name.clone(),
                    shape: info.shape.clone(),
                    dtype: format!("{:?}", info.dtype),
                    bytes: (info.data_offsets.1 - info.data_offsets.0) as u64,
                    parameters: info.shape.iter().map(|d| *d as u64).product(),
                };
                let module = name
                    .rsplit_once('.')
                    .map_or(name.as_str(), |(module, _)| module);
                let packed = self
                    .find(&format!("{module}.weight"))
                    .is_some_and(|(_, info)| info.dtype == Dtype::U32);
                if packed && (name.ends_with(".scales") || name.ends_with(".biases")) {
                    summary.parameters = 0;
                }
                if info.dtype == Dtype::U32
                    && let Some(format) = self.quantization.of(module)
                    && let Some(last) = summary.shape.last_mut()
                {
                    *last = *last * 32 / format.bits as usize;
                    summary.dtype = format!("{}-bit", format.bits);
                    summary.parameters = summary.shape.iter().map(|d| *d as u64).product();
                }
                Some(summary)
            })
            .collect()
    }

    /// Names of all tensors as stored.
    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.index.keys().map(String::as_str)
    }

    /// The name that a text model uses for a stored tensor; `None` for tensors of image encoders.
    pub(crate) fn text_name(&self, stored: &str) -> Option<String> {
        self.layout.text(stored)
    }

    /// Shape and dtype of a stored tensor of floats.
    pub(crate) fn stored_float(&self, stored: &str) -> Result<(Vec<usize>, DType), ModelError> {
        let (shard, info) = self.require(stored)?;
        match float_dtype(info.dtype) {
            Ok(dtype) if dtype != DType::F64 => Ok((info.shape.clone(), dtype)),
            _ => Err(ModelError::unsupported(
                &shard.path,
                format!("the type {:?} of tensor \"{stored}\"", info.dtype),
                "F32, F16, BF16",
            )),
        }
    }

    /// The bytes of some rows of a stored tensor, seen as a matrix of its last dimension.
    pub(crate) fn stored_rows(
        &self,
        stored: &str,
        start: usize,
        count: usize,
    ) -> Result<&[u8], ModelError> {
        let (shard, info) = self.require(stored)?;
        let columns = info.shape.last().copied().unwrap_or(1);
        let rows = info.shape.iter().product::<usize>() / columns.max(1);
        let data = shard.data(info);
        let row_bytes = data.len() / rows.max(1);
        data.get(start * row_bytes..(start + count) * row_bytes)
            .ok_or_else(|| {
                ModelError::corrupt(
                    &shard.path,
                    format!("tensor \"{stored}\" has fewer rows than it should"),
                )
            })
    }
}

/// Rows and columns that share a scale in block-scaled FP8.
const FP8_BLOCK: usize = 128;

/// `w = code * scale of its block`, with codes in F8_E4M3 and scales `[rows / 128, columns / 128]`.
fn dequantize_fp8(
    data: &[u8],
    scales: &Tensor,
    (rows, columns): (usize, usize),
) -> candle_core::Result<Tensor> {
    let codes = Tensor::from_raw_buffer(data, DType::F8E4M3, &[rows, columns], &Device::Cpu)?
        .to_dtype(DType::F32)?;
    let (row_blocks, column_blocks) = scales.dims2()?;
    let scales = scales
        .reshape((row_blocks, 1, column_blocks, 1))?
        .expand((row_blocks, FP8_BLOCK, column_blocks, FP8_BLOCK))?
        .reshape((row_blocks * FP8_BLOCK, column_blocks * FP8_BLOCK))?
        .narrow(0, 0, rows)?
        .narrow(1, 0, columns)?;
    codes * scales
}

/// The bytes as values; copied only when the file has put them at an odd place.
fn aligned<T: Pod>(bytes: &[u8]) -> Cow<'_, [T]> {
    match bytemuck::try_cast_slice(bytes) {
        Ok(values) => Cow::Borrowed(values),
        Err(_) => Cow::Owned(bytemuck::pod_collect_to_vec(bytes)),
    }
}
