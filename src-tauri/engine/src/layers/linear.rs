//! Linear layers and embeddings over dense or packed (block-quantized) weights.

use std::sync::Arc;

use candle_core::{
    DType, Device, Module, Result, Tensor,
    quantized::{QMatMul, QTensor},
};

/// A block-quantized matrix `[rows, columns]`: packed for our own kernels, or in its stored form for the tensor library's (on GPUs, and
/// for the types that our kernels lack).
#[derive(Debug, Clone)]
pub struct PackedMatrix(Packed);

#[derive(Debug, Clone)]
enum Packed {
    Kernel(Arc<headstart_kernels::PackedMatrix>),
    Stock(Arc<QTensor>),
}

impl PackedMatrix {
    /// Over a matrix packed for our kernels.
    pub fn kernel(matrix: headstart_kernels::PackedMatrix) -> Self {
        Self(Packed::Kernel(Arc::new(matrix)))
    }

    /// Over a quantized tensor of rank 2.
    pub fn stock(tensor: QTensor) -> Self {
        Self(Packed::Stock(Arc::new(tensor)))
    }

    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        match &self.0 {
            Packed::Kernel(matrix) => matrix.forward(x),
            // The library's quantized products take f32 and give f32 on every device.
            Packed::Stock(tensor) => {
                QMatMul::QTensor(tensor.clone()).forward(&x.to_dtype(DType::F32)?)
            }
        }
    }

    fn rows(&self, ids: &[u32], dtype: DType, device: &Device) -> Result<Tensor> {
        match &self.0 {
            Packed::Kernel(matrix) => matrix.dequantize_rows(ids, dtype),
            Packed::Stock(tensor) => tensor
                .embedding(&Tensor::new(ids, device)?)?
                .to_dtype(dtype),
        }
    }

    fn bytes(&self) -> usize {
        match &self.0 {
            Packed::Kernel(matrix) => matrix.bytes(),
            Packed::Stock(tensor) => tensor.storage_size_in_bytes(),
        }
    }
}

#[derive(Debug, Clone)]
enum Matrix {
    Dense(Tensor),
    Packed(PackedMatrix, DType),
}

impl Matrix {
    /// `x [tokens, inputs]` -> `[tokens, outputs]`, in the dtype of `x`.
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        match self {
            Self::Dense(weight) => headstart_kernels::dense_matmul(x, weight),
            Self::Packed(matrix, dtype) => matrix.forward(x)?.to_dtype(*dtype),
        }
    }

    /// The matrix of some rows.
    fn select(&self, ids: &[u32], index: &Tensor) -> Result<Self> {
        Ok(match self {
            Self::Dense(weight) => Self::Dense(weight.index_select(index, 0)?),
            Self::Packed(matrix, dtype) => match &matrix.0 {
                Packed::Kernel(matrix) => {
                    Self::Packed(PackedMatrix::kernel(matrix.select_rows(ids)?), *dtype)
                }
                // The library cannot cut its blocks apart.
                Packed::Stock(_) => Self::Dense(matrix.rows(ids, *dtype, index.device())?),
            },
        })
    }

    fn bytes(&self) -> usize {
        match self {
            Self::Dense(tensor) => tensor.elem_count() * tensor.dtype().size_in_bytes(),
            Self::Packed(matrix, _) => matrix.bytes(),
        }
    }
}

/// `y = x W^T + b`.
#[derive(Debug, Clone)]
pub struct Linear {
    weight: Matrix,
    bias: Option<Tensor>,
}

impl Linear {
    /// Over a dense `weight [outputs, inputs]` and a `bias [outputs]`.
    pub fn dense(weight: Tensor, bias: Option<Tensor>) -> Self {
        Self {
            weight: Matrix::Dense(weight),
            bias,
        }
    }

    /// Over a packed matrix; results have `dtype`.
    pub fn packed(matrix: PackedMatrix, bias: Option<Tensor>, dtype: DType) -> Self {
        Self {
            weight: Matrix::Packed(matrix, dtype),
            bias,
        }
    }

    /// `x [tokens, inputs]` -> `[tokens, outputs]`, dtype kept.
    ///
    /// # Errors
    /// When the shapes do not fit or the device fails.
    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let y = self.weight.forward(x)?;
        match &self.bias {
            Some(bias) => y.broadcast_add(bias),
            None => Ok(y),
        }
    }

    /// The layer of the outputs `ids` only, in their order: the same values, bit for bit on the CPU, for a part of the work.
    ///
    /// # Errors
    /// When an id is not an output of this layer or the device fails.
    pub fn select(&self, ids: &[u32], device: &Device) -> Result<Self> {
        let index = Tensor::new(ids, device)?;
        Ok(Self {
            weight: self.weight.select(ids, &index)?,
            bias: match &self.bias {
                Some(bias) => Some(bias.index_select(&index, 0)?),
                None => None,
            },
        })
    }

    /// Bytes of the weights.
    pub fn bytes(&self) -> usize {
        let bias = self
            .bias
            .as_ref()
            .map_or(0, |b| b.elem_count() * b.dtype().size_in_bytes());
        self.weight.bytes() + bias
    }
}

/// A table of token vectors, also usable as the output head that shares it.
#[derive(Debug, Clone)]
pub struct Embedding {
    weight: Matrix,
}

impl Embedding {
    /// Over a dense table `[vocabulary, hidden]`.
    pub fn dense(weight: Tensor) -> Self {
        Self {
            weight: Matrix::Dense(weight),
        }
    }

    /// Over a packed table; vectors have `dtype`.
    pub fn packed(matrix: PackedMatrix, dtype: DType) -> Self {
        Self {
            weight: Matrix::Packed(matrix, dtype),
        }
    }

    /// Token ids -> `[tokens, hidden]`.
    ///
    /// # Errors
    /// When an id is outside the table or the device fails.
    pub fn forward(&self, ids: &[u32], device: &Device) -> Result<Tensor> {
        match &self.weight {
            Matrix::Dense(table) => table.index_select(&Tensor::new(ids, device)?, 0),
            Matrix::Packed(matrix, dtype) => matrix.rows(ids, *dtype, device),
        }
    }

    /// The output head over the same weights.
    pub fn as_head(&self) -> Linear {
        Linear {
            weight: self.weight.clone(),
            bias: None,
        }
    }

    /// Bytes of the table.
    pub fn bytes(&self) -> usize {
        self.weight.bytes()
    }
}
